package outbound

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

func TestAGlanceTellsHowFullABucketIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := Limit{Capacity: 10, LeakRate: 1}
		glance := func(b *Bucket, want float64) {
			t.Helper()
			if full, ok := b.Glance(); !ok || math.Abs(full-want) > 1e-6 && full != want {
				t.Errorf("%v, %v, want %v", full, ok, want)
			}
		}
		for _, limits := range [][]Limit{{one}, {Limit{Capacity: 100, LeakRate: 1}.Of(0, "wide"), one}} {
			b := Must(NewBucket("b", limits...))
			glance(b, 0)
			for range 5 {
				mustAcquire(t, b)
			}
			glance(b, 0.5)
			time.Sleep(time.Second)
			glance(b, 0.4)
			if err := b.Hold(ctx, time.Minute); err != nil {
				t.Fatal(err)
			}
			glance(b, math.Inf(1))
			time.Sleep(time.Minute)
			glance(b, 0.9) // after a hold calls drip
			time.Sleep(time.Minute)
			glance(b, 0)
			var k Booking
			k.Costs, k.Wait, k.Horizon = []Cost{{10}, {10}}, time.Hour, time.Hour
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 2 {
				t.Fatal(k.Tickets, err)
			}
			glance(b, 2)
		}
		b := Must(NewBucket("b", Limit{Capacity: 100, LeakRate: 1}, InFlight(4)))
		mustAcquire(t, b)
		glance(b, 0.25)
	})
	if _, ok := Must(NewSharedBucket(leak.NewMemory(), "k", PerSecond(1))).Glance(); ok {
		t.Error("the state of a shared bucket is here")
	}
	if _, ok := new(Bucket).Glance(); ok {
		t.Error("a zero bucket has a state")
	}
}

// A bucket that is looked at stays as small as it was, and a look allocates nothing.
func TestLookingLeavesABucketAsItIs(t *testing.T) {
	fast, full := Must(NewBucket("b", PerHour(1))), Must(NewBucket("b", PerHour(1), InFlight(4)))
	mustAcquire(t, fast)
	for range 1000 {
		fast.Glance()
		if _, err := fast.State(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := fast.Explain(ctx, Cost{1}); err != nil {
			t.Fatal(err)
		}
	}
	if fast.slow.Load() != nil || fast.word.Load() == busy {
		t.Error("the bucket has left its word")
	}
	for _, b := range []*Bucket{fast, full} {
		if n := testing.AllocsPerRun(100, func() { b.Glance() }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func TestEachTellsWhatALimitLetsGoInAWindow(t *testing.T) {
	for _, l := range []struct {
		Limit
		n      float64
		window time.Duration
	}{
		{PerSecond(10), 10, time.Second},
		{Per(900, time.Minute).Burst(5), 900, time.Minute},
		{Window(100, 10*time.Second), 100, 10 * time.Second},
		{FixedWindow(7, time.Hour), 7, time.Hour},
		{Limit{Capacity: 40, LeakRate: 2}, 0, 0},
		{Daily(100, time.UTC), 0, 0},
		{InFlight(5), 0, 0},
	} {
		if n, w := l.Each(); n != l.n || w != l.window {
			t.Errorf("%v: %v each %v", l.Limit, n, w)
		}
	}
}
