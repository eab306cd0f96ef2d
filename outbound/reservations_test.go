package outbound

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reservations have the bucket's limits without an InFlight, and levels of their own.
func TestReservations_HaveTheLimitsAndLevelsOfTheirOwn(t *testing.T) {
	limits := []Limit{{Capacity: 2, LeakRate: 1}, PerMinute(30).Of(1, "rows"), InFlight(1)}
	bothWays(t, func(t *testing.T, b *Bucket) {
		own := b.Reservations()
		fatalIf(t, own == b || own != b.Reservations() || own.Key() != "k" || own.Shared() != b.Shared(),
			"key %q, shared %v", own.Key(), own.Shared())
		for range 2 { // more than may be in flight
			admit(t, own, 1)
		}
		full := refused(t, own, Cost{1})
		errorIf(t, full.Key != "k", "the third call has %v", full)
		s := states(t, own)
		errorIf(t, len(s) != 2 || s[1].Limit.Name != "rows" || s[1].Limit.String() != limits[1].String(), "%v", s)
		equal(t, level(t, b, 0), 0, "the level of b")
	}, limits...)
	for name, b := range map[string]*Bucket{"only an InFlight": Must(NewBucket("k", InFlight(1))), "nil": nil} {
		equal(t, b.Reservations(), nil, "the reservations of %s", name)
	}
}

// Processes share reservations as they share the bucket, under a key that no user can choose.
func TestReservations_HaveAKeyOfTheirOwn(t *testing.T) {
	store := store.NewMemory()
	shared := func(key string) *Bucket {
		return Must(NewSharedBucket(store, key, Limit{Capacity: 1e6, LeakRate: 1e-3}))
	}
	keys := []string{
		"", "k", "\x00", "\x00reserved", "\x00reserved\x00", "reserved0:k", "\x00reserved0:k", "\x00reserved0:", "\x00reserved\x000:k",
		"\x00reserved0:\x00reserved", "\x00reserved0:0:k", "\x00fallback", "k\x00reserved", "0:k",
	}
	all := []func(key string) *Bucket{
		shared,
		func(key string) *Bucket { return shared(key).Reservations() },
		func(key string) *Bucket { return shared(key).Reservations().Reservations() },
	}
	for i, key := range keys {
		for j, b := range all {
			must(t, errOf(b(key).Acquire(ctx, Cost{float64(1000*j + 100 + i)})))
		}
	}
	for i, key := range keys {
		for j, b := range all {
			got, want := math.Round(level(t, b(key), 0)), float64(1000*j+100+i)
			errorIf(t, got != want, "%q has %v in %d, want %v", key, got, j, want)
		}
	}
}

// After other limits the reservations are others, empty and not held, with the limits and names that are in force. A
// process that has not received the limits yet learns them from the bucket.
func TestReservations_AreOthersAfterOtherLimits(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, limits := store.NewMemory(), []Limit{PerSecond(10), PerMinute(100)}
			b := Must(NewBucket("k", limits...))
			processes := []*Bucket{b}
			if shared {
				b = Must(NewSharedBucket(store, "k", limits...))
				processes = []*Bucket{b, Must(NewSharedBucket(store, "k", limits...))}
			}
			was := b.Reservations()
			must(t, was.Hold(ctx, time.Hour))
			for _, l := range []Limit{PerHour(7), PerMinute(3)} {
				must(t, b.SetLimits(ctx, l))
			}
			for i, b := range processes {
				want := states(t, b)[0]
				is := b.Reservations()
				got, err := is.State(ctx)
				if is == was || is != b.Reservations() || err != nil || got.Limit != want.Limit || got.HeldFor != 0 || got.Level != float64(i) {
					t.Errorf("shared %v: process %d has %+v of %+v, %v", shared, i, got, want, err)
				}
				if _, err := is.Acquire(ctx, Cost{1}); (err == nil) != (i == 0) { // the first has taken all
					t.Errorf("shared %v: process %d has %v", shared, i, err)
				}
			}
			if !shared {
				return
			}
			must(t, b.SetLimits(ctx))
			if got, err := b.Reservations().States(ctx); err != nil || len(got) != 2 || got[0].HeldFor != time.Hour {
				t.Errorf("the reservations by the bucket's own limits are not there again: %+v, %v", got, err)
			}
		})
	}
}

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
		full, ok = errors.AsType[*ThrottledError](err)
		errorIf(t, !ok || !full.Held || full.Reason != "rate", "in a hold: %v", err)
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
		_, err = late.Permit(ctx)
		errorIf(t, !errors.Is(err, ErrThrottled), "a late one: %v", err)
		in("a late one", late, time.Second)
		must(t, b.Resume(ctx))
		_, err = late.Permit(ctx)
		errorIf(t, !errors.Is(err, ErrThrottled), "after a Resume, beside a call that has just left: %v", err)
		time.Sleep(time.Until(late.At()))
		_, err = late.Permit(ctx)
		errorIf(t, err != nil, "after a Resume: %v", err)
		// The latest that is cancelled leaves its time to the next.
		reserve(time.Minute).Cancel()
		in("after a cancel", reserve(time.Minute), time.Second)
		errorIs(t, errOf(b.Reserve(ctx, Cost{1}, time.Second)), ErrThrottled, "beyond maxWait")
		errorIs(t, errOf(b.Reserve(ctx, Cost{-1}, time.Second)), ErrInvalid, "the error")
	}, Limit{Capacity: 1, LeakRate: 1})
}
