package workers

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// RoundTrip serves the API without a network.
func (r *run) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path == "/"+readyPath {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		return w.Result(), nil
	}
	return r.api.RoundTrip(req)
}

// shares returns the result of workers that each keep to their share for a while.
func shares(t *testing.T, f Fleet, apart bool) *Result {
	r := f.newRun(Order{Apart: apart, API: "http://api.example.com/"})
	share := func(o *Order, _ *Counter) (*outbound.Bucket, error) {
		n := float64(o.Workers)
		return outbound.NewBucket(o.Bucket, outbound.Limit{Capacity: max(1, o.Burst/n), LeakRate: o.Rate / n})
	}
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, by which queues refuse early
	time.AfterFunc(time.Duration(f.Seconds*float64(time.Second)), cancel)
	r.result.began = time.Now()
	close(r.begin)
	var all sync.WaitGroup
	for i := range f.Workers {
		o := r.order
		o.Index = i
		all.Go(func() {
			if err := o.work(ctx, share, r); err != context.Canceled {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return r.look()
}

// Workers that keep to their own parts of a limit and begin at one instant call in step: the API
// admits one of ten, and refuses nine.
func TestWorkers_WithoutABucketStartApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := Fleet{Workers: 10, Waiters: 2, Rate: 50, Burst: 1, Seconds: 10}
		if r := shares(t, f, true); r.Used() < 0.95 || r.Used() > 1.01 || r.Refused > 0 || r.Jain() < 0.99 || r.wait(0.5) < 0.35 || r.wait(0.99) > 0.45 {
			t.Errorf("apart: %.3f of the quota used, %d refused, Jain %v, waits %v and %v", r.Used(), r.Refused, r.Jain(), r.wait(0.5), r.wait(0.99))
		}
		if r := shares(t, f, false); r.Refused < 9 {
			t.Errorf("in step: %d refused", r.Refused)
		}
	})
}

// Jain's index is 1 for equal shares, and 1/N if one worker has all calls.
func TestResult_Jain_IsOneForEqualShares(t *testing.T) {
	for want, by := range map[float64][]float64{1: {5, 5, 5, 5}, 1. / 3: {9, 0, 0}, 36. / 42: {1, 2, 3}, 0: {0, 0}} {
		if got := (&Result{by: by}).Jain(); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v: %v, want %v", by, got, want)
		}
	}
}

// A wait is right to two percent, and those of no call and of a clock that was set are about 0.
func TestResult_WaitsAreRightToTwoPercent(t *testing.T) {
	r := Result{by: make([]float64, 1), waits: map[int]int{}}
	if got := r.wait(0.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for i := range 1000 {
		r.add(0, time.Duration(i+1)*time.Millisecond, 1)
	}
	for q, want := range map[float64]float64{0.001: 0.001, 0.5: 0.5, 0.99: 0.99, 1: 1} {
		if got := r.wait(q); math.Abs(got/want-1) > 0.02 {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	r.add(0, -time.Second, 0)
	r.add(0, 0, 0)
	if got := r.wait(0.001); got > 2e-6 {
		t.Errorf("%v", got)
	}
}

// No line that the program prints has more than 60 columns.
func TestTable_HasAtMost60Columns(t *testing.T) {
	f := &Fleet{Workers: 1000, Waiters: 1000, Rate: 10_000, Burst: 10_000, Seconds: 3600}
	r := &Result{Way: "shared", Answered: 999_999, Refused: 999_999, trips: 9_999_999, fleet: f, by: make([]float64, 1), waits: map[int]int{}, took: time.Hour}
	for _, text := range append(table([]*Result{r}), f.String(), APILimit, r.line()) {
		for line := range strings.Lines(text) {
			if n := len(strings.TrimSuffix(line, "\n")); n > 60 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
}
