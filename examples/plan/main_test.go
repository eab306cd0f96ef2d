package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// args returns the arguments of a line, in which ; is a space within one.
func args(line string) []string {
	all := strings.Fields(line)
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], ";", " ")
	}
	return all
}

func TestPlan_NamesTheLimitThatBinds(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"-limit 10;per;1s -limit 100;in;any;1m -calls 250 -workers 3 -callers 2 -latency 100ms", []string{`
250 calls, made by 3 workers with 2 callers each.
Once it goes, a call takes 100ms.

duration   2m6.6s, 118.4 calls a minute
`, `
without 10 per 1s                   2m2.4s
without 100 in any 1m               25.25s
with twice the callers              2m6.6s

What bounds it: 100 in any 1m.
`}},
		{"-limit 100;per;1s -calls 100 -workers 2 -callers 1 -latency 100ms", []string{`
duration   5.01s, 1198 calls a minute
waits      p50 0s, p95 0s, `, `
without 100 per 1s                  5s
with twice the callers              2.53s

What bounds it: the callers.
`}},
		// A queue books no reservation that is more than a day away.
		{"-limit 1;per;48h -calls 3 -workers 1 -callers 1", []string{"\nrefusals   2\n           A call that would wait too long is refused,\n"}},
		{"-limit 10;per;1s -limit 100;per;1m -calls 50", []string{"\nWhat bounds it: 100 per 1m.\n"}},
		{"-limit 100;per;day;UTC -calls 150 -workers 2", []string{"\nduration   24h0m0s, ", "\nWhat bounds it: 100 per day UTC.\n"}},
		{"-limit 10;in;any;1h -calls 11 -workers 1", []string{"\nwaits      p50 0s, p95 1h0m0s, longest 1h0m0s\n"}},
		{"-limit 9;in;any;1s -calls 9 -workers 2 -latency 0s", []string{"\nduration   0s, ", "\nWhat bounds it: nothing of these alone.\n"}},
	} {
		var out, stderr bytes.Buffer
		status := example.Exec(t.Context(), args(c.args), &out, &stderr)
		for _, want := range c.want {
			if status != 0 || !strings.Contains(out.String(), want) {
				t.Errorf("%s: status %d, want%s\ngot\n%s%s", c.args, status, want, &out, &stderr)
			}
		}
	}
}

func TestPlan_KeepsEveryLimit(t *testing.T) {
	p := plan{limits: []outbound.Limit{outbound.PerSecond(30), outbound.Window(100, 10*time.Second), outbound.PerMinute(2500)}, calls: 500, workers: 5, callers: 4, latency: 50 * time.Millisecond}
	r, err := p.try()
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Departures.Len(); n != 500 {
		t.Errorf("%d calls have left", n)
	}
	for _, l := range p.limits {
		n, window := l.Each()
		if err := r.Departures.CheckWindow(n, window); err != nil {
			t.Error(err)
		}
	}
}

func TestPlan_RefusesWhatItCannotTry(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"-limit x", "is not a number"},
		{"-limit 0;per;1s", "-limit"},
		{"-limit 10;per;1s -limit 10;per;1s", "two limits of one unit"},
		{"-calls 0", "want a number from 1 to 200000"},
		{"-workers 101", "want a number from 1 to 100"},
		{"-callers 0", "want a number from 1 to 100"},
		{"-latency -1s", "-latency needs"},
		{"-latency 2h", "-latency needs"},
		{"-limit 1;per;24h -calls 200000", "too long to try with 10 workers"},
		{"-limit 1;in;any;24h -calls 200000", "too long to try"},
		{"-limit 1;per;1s -latency 1h -workers 1 -callers 1 -calls 200000", "(the callers): too long"},
		{"more", "one argument too many"},
	} {
		var out, stderr bytes.Buffer
		status := example.Exec(t.Context(), args(c.args), &out, &stderr)
		if status != 2 || out.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: status %d, want 2 and %q:\n%s%s", c.args, status, c.says, &stderr, &out)
		}
	}
}

// A release of Go in which a zero testing.T does not serve shows here.
func TestPlan_DayPassesInAMoment(t *testing.T) {
	for range 2 {
		var passed time.Duration
		synctest.Test(new(testing.T), func(*testing.T) {
			start := time.Now()
			done := make(chan struct{})
			time.AfterFunc(24*time.Hour, func() { close(done) })
			<-done
			passed = time.Since(start)
		})
		if passed != 24*time.Hour {
			t.Errorf("%v have passed", passed)
		}
	}
}
