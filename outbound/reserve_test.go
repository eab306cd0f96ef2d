package outbound_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A hold moves a reservation, a Resume and lateness replace it, and a used one is used up: in memory
// and in a store.
func TestReservation_FollowsTheBucket(t *testing.T) {
	outbound.BothWays(t, func(t *testing.T, b *outbound.Bucket) {
		ctx := context.Background()
		reserve := func(within time.Duration) *outbound.Reservation {
			r, err := b.Reserve(ctx, outbound.Cost{1}, within)
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
			return r
		}
		in := func(what string, r *outbound.Reservation, want time.Duration) {
			t.Helper()
			if d := time.Until(r.At()); (d - want).Abs() > time.Millisecond {
				t.Errorf("%s: in %v, want %v", what, d, want)
			}
		}
		used := reserve(0)
		first, err := used.Permit(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := used.Permit(ctx); !errors.Is(err, outbound.ErrInvalid) || !used.At().IsZero() {
			t.Errorf("a used reservation: %v", err)
		}
		used.Cancel()
		r := reserve(time.Minute)
		in("the second", r, time.Second)
		_, err = r.Permit(ctx)
		if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || (full.RetryAfter-time.Second).Abs() > time.Millisecond {
			t.Errorf("before its time: %v", err)
		}
		first.Refused(5 * time.Second)
		time.Sleep(time.Second)
		_, err = r.Permit(ctx)
		if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || !full.Held || full.Reason != "rate" {
			t.Errorf("in a hold: %v", err)
		}
		for range 3 { // until it is due
			time.Sleep(time.Until(r.At()))
			if _, err = r.Permit(ctx); err == nil {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
		// One that is late is replaced, so that it does not leave with those that were booked since.
		late := reserve(time.Minute)
		time.Sleep(3 * time.Second)
		next := reserve(time.Minute)
		if _, err := next.Permit(ctx); err != nil {
			t.Error(err)
		}
		if _, err = late.Permit(ctx); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("a late one: %v", err)
		}
		in("a late one", late, time.Second)
		if err := b.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err = late.Permit(ctx); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("after a Resume, beside a call that has just left: %v", err)
		}
		time.Sleep(time.Until(late.At()))
		if _, err = late.Permit(ctx); err != nil {
			t.Errorf("after a Resume: %v", err)
		}
		// The latest that is cancelled leaves its time to the next.
		reserve(time.Minute).Cancel()
		in("after a cancel", reserve(time.Minute), time.Second)
		if _, err := b.Reserve(ctx, outbound.Cost{1}, time.Second); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("beyond maxWait: %v", err)
		}
		if _, err := b.Reserve(ctx, outbound.Cost{-1}, time.Second); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	}, outbound.Limit{Capacity: 1, LeakRate: 1})
}
