package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestJainIsOneForEqualsAndOneNthForOneAlone(t *testing.T) {
	for _, c := range []struct {
		shares []float64
		want   float64
	}{
		{[]float64{5, 5, 5, 5}, 1},
		{[]float64{9, 0, 0}, 1.0 / 3},
		{[]float64{1, 2, 3}, 36.0 / 42},
		{[]float64{0, 0}, 0},
		{nil, 0},
	} {
		if got := jain(c.shares); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.shares, got, c.want)
		}
	}
}

func TestQuantilesAreRightToOnePercent(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{
		{0.001, time.Millisecond},
		{0.5, 500 * time.Millisecond},
		{0.99, 990 * time.Millisecond},
		{1, time.Second},
	} {
		if got := h.quantile(c.q); math.Abs(float64(got)/float64(c.want)-1) > 0.01 {
			t.Errorf("%v: %v, want %v", c.q, got, c.want)
		}
	}
}

func TestDurationsBeyondTheHistogramStayInIt(t *testing.T) {
	var h histogram
	h.add(-time.Second)
	h.add(0)
	if got := h.quantile(1); got > 2*time.Microsecond {
		t.Errorf("%v", got)
	}
	h.add(1 << 62)
	if got := h.quantile(1); got < 2*time.Hour {
		t.Errorf("%v", got)
	}
}

func TestReportsOfAllWhoWereInAPlaceAddUp(t *testing.T) {
	p := params{Workers: 2, Rate: 10, Burst: 1}
	tr := newTrial(p, order{Mode: shared}, nil, &server{})
	tr.began, tr.took = time.Now(), 2*time.Second
	ready := make(chan struct{})
	tr.hear(tr.slots[0], ready, report{Ready: true})
	<-ready
	tr.hear(tr.slots[0], ready, report{Answered: 9, Refused: 1, Commands: 12, Waits: []int64{1000, 3000}})
	tr.hear(tr.slots[1], ready, report{Answered: 11, Failed: 1, Error: "no route", Commands: 9, Waits: []int64{2000}})
	tr.hear(tr.slots[1], ready, report{Failed: 1, Error: "another", Done: true})
	r := tr.result()
	if r.Answered != 20 || r.Refused != 1 || r.Failed != 2 || r.Error != "no route" {
		t.Errorf("%+v", r)
	}
	if r.Commands != 21 || r.CountedBy != "workers" || r.PerCall != 1 {
		t.Errorf("%+v", r)
	}
	if math.Abs(r.Used-20.0/21) > 1e-9 || math.Abs(r.Jain-400.0/404) > 1e-9 || math.Abs(r.WaitP50-0.002) > 2e-5 {
		t.Errorf("%+v", r)
	}
	tr.served, tr.counted = 42, true
	if r := tr.result(); r.CountedBy != "server" || r.PerCall != 2 {
		t.Errorf("%+v", r)
	}
}

func TestResultOnStandardOutputIsJSONAndNothingElse(t *testing.T) {
	t.Setenv("PATH", "")
	var out, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-mode", "none", "-workers", "1", "-seconds", "0.5", "-json", "-"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	var o outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		t.Fatalf("%v:\n%s", err, &out)
	}
	if o.Versions["go-redis"] == "" || o.Parameters.Seed == 0 || o.Bucket != "1 burst, 50/s" {
		t.Errorf("%+v", o)
	}
	if !strings.Contains(stderr.String(), "quota answered refused") {
		t.Errorf("the table is missing:\n%s", &stderr)
	}
}

func TestResultThatCannotBeWrittenIsAnError(t *testing.T) {
	o := newOutcome(params{Rate: 1, Burst: 1}, nil)
	if err := o.write("-", failing{}); err == nil {
		t.Error("nobody is told")
	}
	if err := o.write(t.TempDir(), nil); err == nil {
		t.Error("nobody is told")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space") }
