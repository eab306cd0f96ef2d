package outbound

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

func TestABucketBesideHasTheLimitsAndLevelsOfItsOwn(t *testing.T) {
	limits := []Limit{{Capacity: 2, LeakRate: 1}, PerMinute(30).Of(1, "rows"), InFlight(1)}
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", limits...))
			if shared {
				b = Must(NewSharedBucket(leak.NewMemory(), "k", limits...))
			}
			own := b.Beside("line")
			if own == b || own != b.Beside("line") || own == b.Beside("other") || own.Key() != "k" || own.Shared() != shared {
				t.Fatalf("shared %v: key %q, shared %v", shared, own.Key(), own.Shared())
			}
			// Without the InFlight two calls go that do not end; a third finds the limit full, and
			// b has noticed nothing.
			for range 2 {
				if _, err := own.Acquire(ctx, Cost{1}); err != nil {
					t.Error(err)
				}
			}
			var full *ThrottledError
			if _, err := own.Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Key != "k" {
				t.Errorf("shared %v: the third call has %v", shared, err)
			}
			states, err := own.States(ctx)
			if err != nil || len(states) != 2 || states[1].Limit.Name != "rows" || states[1].Limit.String() != limits[1].String() {
				t.Errorf("shared %v: %v, %v", shared, states, err)
			}
			if s, err := b.State(ctx); err != nil || s.Level != 0 {
				t.Errorf("shared %v: b has %+v, %v", shared, s, err)
			}
			if s, err := b.Beside("other").State(ctx); err != nil || s.Level != 0 {
				t.Errorf("shared %v: the other has %+v, %v", shared, s, err)
			}
		})
	}
	if own := Must(NewBucket("k", InFlight(1))).Beside("line"); own != nil {
		t.Errorf("beside an InFlight there is %v", own)
	}
	if own := (*Bucket)(nil).Beside("line"); own != nil {
		t.Errorf("beside nil there is %v", own)
	}
}

// Workers of a fleet have one bucket beside theirs, and no key that a user may choose is its key.
func TestBucketsBesideAreSharedAndNobodyElses(t *testing.T) {
	store := leak.NewMemory()
	shared := func(key string) *Bucket {
		return Must(NewSharedBucket(store, key, Limit{Capacity: 1e6, LeakRate: 1e-3}))
	}
	level := func(b *Bucket) float64 {
		t.Helper()
		s, err := b.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return float64(int(s.Level + 0.5))
	}
	keys := []string{
		"", "k", "\x00", "\x00beside", "\x00beside\x00", `beside"line"k`, "\x00beside\"line\"k", "\x00beside\"line\"", "\x00beside\x00\"line\"k",
		"\x00beside\"line\"\x00beside", "\x00beside\"line\"\"line\"k", "\x00fallback", "k\x00beside", "\"line\"k",
	}
	for i, key := range keys {
		if _, err := shared(key).Acquire(ctx, Cost{float64(100 + i)}); err != nil {
			t.Fatal(err)
		}
		for j, name := range []string{"line", "", "li", `line"k`} {
			if _, err := shared(key).Beside(name).Acquire(ctx, Cost{float64(1000*(j+1) + i)}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := shared(key).Beside("line").Beside("line").Acquire(ctx, Cost{float64(10_000 + i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range keys {
		if got := level(shared(key)); got != float64(100+i) {
			t.Errorf("%q has %v", key, got)
		}
		for j, name := range []string{"line", "", "li", `line"k`} {
			if got := level(shared(key).Beside(name)); got != float64(1000*(j+1)+i) {
				t.Errorf("%q beside %q has %v", name, key, got)
			}
		}
		if got := level(shared(key).Beside("line").Beside("line")); got != float64(10_000+i) {
			t.Errorf("beside what is beside %q there is %v", key, got)
		}
	}
}

// It has the very limits, names included, also where it has missed some that were set meanwhile: which
// name a limit inherits is up to those before it.
func TestABucketBesideFollowsTheLimits(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &counting{Store: leak.NewMemory()}
			limits := []Limit{PerSecond(10), PerMinute(100)}
			b := Must(NewBucket("k", limits...))
			if shared {
				b = Must(NewSharedBucket(store, "k", limits...))
			}
			own := b.Beside("line")
			if err := own.Hold(ctx, time.Hour); err != nil {
				t.Fatal(err)
			}
			for _, l := range []Limit{PerHour(7), PerMinute(3)} {
				if err := b.SetLimits(ctx, l); err != nil {
					t.Fatal(err)
				}
			}
			want, err := b.State(ctx)
			for range 2 {
				got, e := own.State(ctx)
				if err != nil || e != nil || got.Limit != want.Limit || got.HeldFor != 0 {
					t.Errorf("shared %v: %+v of %+v, %v, %v", shared, got, want, err, e)
				}
			}
			trips := store.trips
			if _, err := own.State(ctx); err != nil || store.trips > trips+1 {
				t.Errorf("a look takes %d trips, %v", store.trips-trips, err)
			}
		})
	}
}

// The store fails one of the trips by which the bucket follows. Its next use goes on from there, and the hold ends.
func TestABucketBesideIsNotLeftHeld(t *testing.T) {
	for fails := 1; fails <= 4; fails++ {
		synctest.Test(t, func(t *testing.T) {
			store := &counting{Store: leak.NewMemory()}
			b := Must(NewSharedBucket(store, "k", PerSecond(10)))
			own := b.Beside("line")
			if err := errors.Join(own.Hold(ctx, time.Hour), b.SetLimits(ctx, PerSecond(20))); err != nil {
				t.Fatal(err)
			}
			store.trips, store.fails = 0, fails
			for range 2 {
				_, _ = own.State(ctx)
			}
			if s, err := own.State(ctx); err != nil || s.HeldFor != 0 || s.Limit != PerSecond(20) {
				t.Errorf("where trip %d fails: %+v, %v", fails, s, err)
			}
		})
	}
}
