package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// wantWaits checks what Stats reports of the waiting calls.
func wantWaits(t *testing.T, when string, q *Queue, waiting int, oldest, nextIn time.Duration) {
	t.Helper()
	s := q.Stats()
	if off := s.NextIn - nextIn; off < 0 || off > 20*time.Microsecond || s.NextIn == 0 != (nextIn == 0) || s.Waiting != waiting || s.Oldest != oldest {
		t.Errorf("%s: %d wait, the oldest for %v, the next leaves in %v; want %d, %v, %v", when, s.Waiting, s.Oldest, s.NextIn, waiting, oldest, nextIn)
	}
}

// Stats reports how many calls wait, for how long, and when the next leaves.
func TestStats_CountWaitingCalls(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 1}}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		if q.Bucket() != b {
			t.Error("another bucket")
		}
		wantWaits(t, "at first", q, 0, 0, 0)
		come(bg, q, 1)
		wantWaits(t, "after a call that left immediately", q, 0, 0, 0)
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 1)
		wantWaits(t, "one waits", q, 1, 0, time.Second)
		pass(300 * ms)
		come(bg, q, 1)
		pass(100 * ms)
		come(bg, q, 1)
		wantWaits(t, "three wait", q, 3, 400*ms, 600*ms)
		if n := testing.AllocsPerRun(10, func() { q.Stats() }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		cancel()
		synctest.Wait()
		wantWaits(t, "the first was cancelled", q, 2, 100*ms, 600*ms)
		if err := b.Hold(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantWaits(t, "in a hold", q, 2, 100*ms, time.Minute+600*ms) // it stops the bucket's clock
		pass(time.Minute + 1100*ms)
		wantWaits(t, "after the hold", q, 1, time.Minute+1100*ms, 500*ms)
		pass(time.Minute)
		wantWaits(t, "at the end", q, 0, 0, 0)
	})
}

// NextIn is 0 while it is unknown when the next call leaves.
func TestStats_UnknownNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1)), Config{})
		p := admitted(t, q, 1)
		come(bg, q, 1)
		pass(time.Minute)
		wantWaits(t, "a call in flight has to end", q, 1, time.Minute, 0)
		p.Done()
		pass(time.Second)
		wantWaits(t, "it has ended", q, 0, 0, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: time.Second}, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
		come(bg, q, 1)
		pass(300 * ms)
		wantWaits(t, "the first reply is not here yet", q, 1, 300*ms, 0)
		pass(time.Minute)
	})
	synctest.Test(t, func(t *testing.T) { // nothing can be booked in the next hour yet, and the time is known
		q := New(bucket(t, outbound.Hourly(1)), Config{})
		comeAll(4, bg, q, 1)
		for range 6 * 60 {
			if s := q.Stats(); s.Waiting > 0 && (s.NextIn == 0 || s.NextIn > time.Hour+time.Minute) {
				t.Errorf("%+v", s)
			}
			pass(time.Minute)
		}
		wantWaits(t, "six hours later", q, 0, 0, 0)
	})
}
