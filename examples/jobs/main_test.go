package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestAllJobsAreDoneAtThePaceOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		// 24 intervals of 40.4 ms are 0.97 s, and 39 are 1.58 s; the look that follows comes at 1.75 s.
		for _, want := range []string{
			`order 7: the address does not exist`,
			`23 shipped and 2 failed in 1\.0 s\.`,
			`queue  [1-9]{40}\n +1\d\d runs, all sent in 1\.[78] s`,
			`jobs   [12]{40}\n +[67]\d runs, all sent in (1\.9|2\.\d) s`,
			`booked 1{40}\n +40 runs, all sent in (1\.9|2\.\d) s`,
			`queue  acme, 40 jobs  █{20,} 2\.\d s\n         bolt,  4 jobs  █{12,} [12]\.\d s`,
			`jobs   acme, 40 jobs  █{20,} 2\.\d s\n         bolt,  4 jobs  █{1,7} 0\.\d s`,
			`In no second did more than 25 reports and orders go\.\nThe API allows 25\.`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("%q is missing", want)
			}
		}
		if t.Failed() {
			t.Logf("\n%s", &out)
		}
	})
}

// sent sends the reports in one way, and returns how many runs that takes, and how long.
func sent(t *testing.T, w way) (runs int, took time.Duration) {
	t.Helper()
	var api api
	start := time.Now()
	bucket := outbound.Must(outbound.NewBucket("shop", outbound.PerSecond(perSecond)))
	system, err := w.send(t.Context(), bucket, &api)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range system.jobs {
		runs += j.runs
	}
	if worst := api.began.Worst(time.Second).Units; worst > perSecond {
		t.Errorf("%s: %v calls in a second", w.name, worst)
	}
	return runs, time.Since(start)
}

func TestAJobRunsTwiceInALineAndOnceIfItWasBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare, slow := sent(t, way{limiter: func(b *outbound.Bucket) outbound.Limiter { return b }})
		if bare != reports*(reports+1)/2 || slow < reports*poll { // one job goes at each look of the system
			t.Errorf("a bare bucket took %d runs and %v, want %d and %v", bare, slow, reports*(reports+1)/2, reports*poll)
		}
		for i, most := range []int{bare / 4, 2 * reports, reports} {
			if runs, took := sent(t, ways[i]); runs > most || took > 2250*time.Millisecond {
				t.Errorf("%s: %d runs and %v", ways[i].name, runs, took)
			}
		}
	})
}

func TestAHotTenantLeavesTheWorkersToTheOthersOnlyInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, w := range ways[:2] {
			longest, err := w.serve(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tenant := range tenants {
				waits := tenant.name == "acme" || i == 0
				if got := longest[tenant.name]; got > time.Second != waits {
					t.Errorf("%s: %s waits for %v", w.name, tenant.name, got)
				}
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestFailureOfAReportEndsTheSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		system := &jobSystem{every: poll, workers: 2, do: func(_ context.Context, j *job) error {
			if j.tenant == "" {
				return broken
			}
			return &outbound.ThrottledError{RetryAfter: time.Hour}
		}}
		for _, tenant := range []string{"acme", "bolt", ""} {
			system.add(&job{tenant: tenant})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := system.run(ctx); !errors.Is(err, broken) {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestInterruptEndsBothKinds(t *testing.T) {
	for _, after := range []time.Duration{time.Second / 2, 2 * time.Second, 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			start := time.Now()
			var out bytes.Buffer
			if err := run(ctx, &out); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v the error is %v", after, err)
			}
			if ended := bytes.Contains(out.Bytes(), []byte("shipped")); ended != (after > time.Second) {
				t.Errorf("after %v it printed\n%s", after, &out)
			}
			if took := time.Since(start); took != after {
				t.Errorf("it ended after %v instead of %v", took, after)
			}
		})
	}
}
