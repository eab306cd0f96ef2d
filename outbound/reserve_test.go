package outbound

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A hold moves a reservation, a Resume and lateness replace it, and a used one is used up: in memory
// and in a store.
func TestReservation_FollowsTheBucket(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		ctx := context.Background()
		reserve := func(within time.Duration) *Reservation {
			r, err := b.Reserve(ctx, Cost{1}, within)
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
			return r
		}
		in := func(what string, r *Reservation, want time.Duration) {
			t.Helper()
			d := time.Until(r.At())
			errorIf(t, (d-want).Abs() > time.Millisecond, "%s: in %v, want %v", what, d, want)
		}
		used := reserve(0)
		first, err := used.Permit(ctx)
		must(t, err)
		if _, err := used.Permit(ctx); !errors.Is(err, ErrInvalid) || !used.At().IsZero() {
			t.Errorf("a used reservation: %v", err)
		}
		used.Cancel()
		r := reserve(time.Minute)
		in("the second", r, time.Second)
		_, err = r.Permit(ctx)
		full, ok := errors.AsType[*ThrottledError](err)
		errorIf(t, !ok || (full.RetryAfter-time.Second).Abs() > time.Millisecond, "before its time: %v", err)
		first.Refused(5 * time.Second)
		time.Sleep(time.Second)
		_, err = r.Permit(ctx)
		if full, ok := errors.AsType[*ThrottledError](err); !ok || !full.Held || full.Reason != "rate" {
			t.Errorf("in a hold: %v", err)
		}
		for range 3 { // until it is due
			time.Sleep(time.Until(r.At()))
			if _, err = r.Permit(ctx); err == nil {
				break
			}
		}
		errorIf(t, err != nil, "%v", err)
		// One that is late is replaced, so that it does not leave with those that were booked since.
		late := reserve(time.Minute)
		time.Sleep(3 * time.Second)
		next := reserve(time.Minute)
		if _, err := next.Permit(ctx); err != nil {
			t.Error(err)
		}
		if _, err = late.Permit(ctx); !errors.Is(err, ErrThrottled) {
			t.Errorf("a late one: %v", err)
		}
		in("a late one", late, time.Second)
		must(t, b.Resume(ctx))
		if _, err = late.Permit(ctx); !errors.Is(err, ErrThrottled) {
			t.Errorf("after a Resume, beside a call that has just left: %v", err)
		}
		time.Sleep(time.Until(late.At()))
		if _, err = late.Permit(ctx); err != nil {
			t.Errorf("after a Resume: %v", err)
		}
		// The latest that is cancelled leaves its time to the next.
		reserve(time.Minute).Cancel()
		in("after a cancel", reserve(time.Minute), time.Second)
		errorIs(t, errOf(b.Reserve(ctx, Cost{1}, time.Second)), ErrThrottled, "beyond maxWait")
		errorIs(t, errOf(b.Reserve(ctx, Cost{-1}, time.Second)), ErrInvalid, "the error")
	}, Limit{Capacity: 1, LeakRate: 1})
}
