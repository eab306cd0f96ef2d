package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/jobsystem"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func TestProgram_SendsAtThePaceOfTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		// 39 intervals of 40.4 ms are 1.58 s; the look that follows comes at 1.75 s.
		for _, want := range []string{
			`queue  [1-9]{40}\n +1\d\d runs, all sent in 1\.[78] s`,
			`jobs   [12]{40}\n +[67]\d runs, all sent in (1\.9|2\.\d) s`,
			`booked 1{40}\n +40 runs, all sent in (1\.9|2\.\d) s`,
			`In no second did more than 25 reports go\.\nThe API allows 25\.`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("%q is missing:\n%s", want, &out)
			}
		}
	})
}

// sent sends the reports in one way, and returns how many runs that takes, and how long.
func sent(t *testing.T, w way) (runs int, took time.Duration) {
	t.Helper()
	var api outboundtest.History
	start := time.Now()
	system, err := w.send(t.Context(), outbound.Must(outbound.NewBucket("shop", outbound.PerSecond(perSecond))), &api)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range system.Jobs {
		runs += j.Runs
	}
	if worst := api.Worst(time.Second).Units; worst > perSecond {
		t.Errorf("%s: %v calls in a second", w.name, worst)
	}
	return runs, time.Since(start)
}

func TestScheduler_JobRunsTwiceAndOnceIfBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare, slow := sent(t, way{limiter: func(b *outbound.Bucket) outbound.Limiter { return b }})
		if bare != reports*(reports+1)/2 || slow < reports*jobsystem.Poll { // one job goes at each look of the system
			t.Errorf("a bare bucket took %d runs and %v, want %d and %v", bare, slow, reports*(reports+1)/2, reports*jobsystem.Poll)
		}
		for i, most := range []int{bare / 4, 2 * reports, reports} {
			if runs, took := sent(t, ways[i]); runs > most || took > 2250*time.Millisecond {
				t.Errorf("%s: %d runs and %v", ways[i].name, runs, took)
			}
		}
	})
}

func TestInterrupt_EndsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if err := run(ctx, io.Discard); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}
