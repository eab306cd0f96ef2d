package outboundtest_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// A load makes calls, and reports what becomes of them.
func TestLoad(t *testing.T) {
	bubble(t, "All workers together make each call once, within the limit", func(t *testing.T) {
		store := store.NewMemory()
		var workers []outbound.Limiter
		for range 3 {
			bucket := outbound.Must(outbound.NewSharedBucket(store, "api", outbound.Window(10, time.Second)))
			workers = append(workers, queue.New(bucket, queue.Config{}))
		}
		start := time.Now()
		r := outboundtest.Load{Calls: 100, Callers: 4, Latency: 20 * time.Millisecond}.Run(t.Context(), workers...)
		if r.Took != time.Since(start) || len(r.Waits) != 100 || r.Departures.Len() != 100 || r.Failed > 0 || r.Refused > 0 {
			t.Errorf("%d admitted, %d departures, %d refused, %d failed, took %v", len(r.Waits), r.Departures.Len(), r.Refused, r.Failed, r.Took)
		}
		errorIs(t, r.Departures.CheckWindow(10, time.Second), nil, "the error")
		// Ten go every 1.01 s, and the last ten end with their calls.
		errorIf(t, r.Took < 9*time.Second || r.Took > 10*time.Second, "took %v", r.Took)
		if !slices.IsSorted(r.Waits) || r.Wait(0) != 0 || r.Wait(1) != r.Waits[99] || r.Wait(1) > 3*time.Second {
			t.Errorf("the waits are %v", r.Waits)
		}
	})
	bubble(t, "With one caller nothing waits for a limit, and all calls follow each other", func(t *testing.T) {
		for callers, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 500 * time.Millisecond, 3: 400 * time.Millisecond, 100: 100 * time.Millisecond} {
			r := outboundtest.Load{Calls: 10, Callers: callers, Latency: 100 * time.Millisecond}.Run(t.Context(), outbound.Unlimited{})
			if r.Took != want || r.Wait(1) != 0 || len(r.Waits) != 10 {
				t.Errorf("%d callers: took %v, want %v; the longest wait is %v", callers, r.Took, want, r.Wait(1))
			}
		}
	})
	bubble(t, "A refused call is made again after its RetryAfter, and its wait counts from the first try", func(t *testing.T) {
		bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 2, LeakRate: 2}))
		r := outboundtest.Load{Calls: 3, Callers: 3, Cost: outbound.Cost{2}}.Run(t.Context(), bucket)
		// One goes at once, two come back after 1 s, and one of them after another.
		errorIf(t, r.Refused != 3 || r.Took.Round(time.Millisecond) != 2*time.Second,
			"refused %d times, took %v", r.Refused, r.Took)
		w := r.Departures.Total()
		errorIf(t, w.Units != 6 || w.Departures != 3, "%+v", w)
		got := r.Wait(0.5).Round(time.Millisecond)
		errorIf(t, got != time.Second, "the median wait is %v, which leaves out what came before the refusal", got)
	})
	bubble(t, "A call that cannot be admitted counts as failed, with its error", func(t *testing.T) {
		// An hour is not enough for the third call, which comes back after it and finds ctx ended.
		bucket := outbound.Must(outbound.NewBucket("api", outbound.Window(2, 2*time.Hour)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		r := outboundtest.Load{Calls: 5}.Run(ctx, bucket)
		if len(r.Waits) != 2 || r.Failed != 3 || !errors.Is(r.Err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("%d admitted, %d failed after %v: %v", len(r.Waits), r.Failed, time.Since(start), r.Err)
		}
		// A limiter that heeds no ctx, under one that has ended.
		r = outboundtest.Load{Calls: 2}.Run(ctx, never{})
		errorIf(t, r.Failed != 2 || r.Refused != 0 || !errors.Is(r.Err, outbound.ErrThrottled),
			"%d refused, %d failed: %v", r.Refused, r.Failed, r.Err)
		// A cost that never has room.
		r = outboundtest.Load{Calls: 5, Cost: outbound.Cost{3}}.Run(t.Context(), bucket)
		errorIf(t, len(r.Waits) != 0 || r.Failed != 5 || !errors.Is(r.Err, outbound.ErrTooLarge) || r.Wait(0.5) != 0,
			"%d admitted, %d failed: %v", len(r.Waits), r.Failed, r.Err)
		// Nobody knows when a call in progress ends.
		busy := outbound.Must(outbound.NewBucket("api", outbound.InFlight(1)))
		r = outboundtest.Load{Calls: 2, Callers: 2, Latency: time.Second}.Run(t.Context(), busy)
		errorIf(t, len(r.Waits) != 1 || r.Failed != 1 || !errors.Is(r.Err, outbound.ErrThrottled),
			"%d admitted, %d failed: %v", len(r.Waits), r.Failed, r.Err)
	})
	t.Run("An invalid Load panics", func(t *testing.T) {
		run := func(l outboundtest.Load) func() {
			return func() { l.Run(t.Context(), outbound.Unlimited{}) }
		}
		wantPanic(t, "no limiter", func() { outboundtest.Load{Calls: 1}.Run(t.Context()) })
		wantPanic(t, "-1 calls", run(outboundtest.Load{Calls: -1}))
		wantPanic(t, "-1 callers", run(outboundtest.Load{Calls: 1, Callers: -1}))
		wantPanic(t, "a latency", run(outboundtest.Load{Calls: 1, Latency: -1}))
		wantPanic(t, "a share of 1.1", func() { new(outboundtest.LoadReport).Wait(1.1) })
		wantPanic(t, "a share of NaN", func() { new(outboundtest.LoadReport).Wait(math.NaN()) })
	})
}

// never admits no call.
type never struct{}

func (never) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, &outbound.ThrottledError{RetryAfter: time.Second}
}
