package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// seen is what Stats tells of those who wait.
type seen struct {
	waiting        int
	oldest, nextIn time.Duration
}

func wantWaits(t *testing.T, when string, q *Queue, want seen) {
	t.Helper()
	s := q.Stats()
	if off := s.NextIn - want.nextIn; off < 0 || off > 20*time.Microsecond || s.NextIn < 0 != (want.nextIn < 0) || s.Waiting != want.waiting || s.Oldest != want.oldest {
		t.Errorf("%s: %d wait, the oldest for %v, the next goes in %v; want %+v", when, s.Waiting, s.Oldest, s.NextIn, want)
	}
}

func TestStats_CountWaitingCalls(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 1}
	for name, of := range map[string]func() *outbound.Bucket{
		"in memory": func() *outbound.Bucket { return bucket(t, limit) },
		"shared":    func() *outbound.Bucket { return shared(t, store.NewMemory(), limit) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := of()
				q := New(b, Config{})
				if q.Bucket() != b {
					t.Error("another bucket")
				}
				ask := func(ctx context.Context) {
					go q.Acquire(ctx, outbound.Cost{1})
					synctest.Wait()
				}
				wantWaits(t, "at first", q, seen{})
				ask(bg)
				wantWaits(t, "after a call that went at once", q, seen{})
				ctx, cancel := contextWithCancel()
				ask(ctx)
				wantWaits(t, "one waits", q, seen{1, 0, time.Second})
				pass(300 * time.Millisecond)
				ask(bg)
				pass(100 * time.Millisecond)
				ask(bg)
				wantWaits(t, "three wait", q, seen{3, 400 * time.Millisecond, 600 * time.Millisecond})
				if took := testing.AllocsPerRun(10, func() { q.Stats() }); took != 0 {
					t.Errorf("%v allocations", took)
				}
				cancel()
				synctest.Wait()
				wantWaits(t, "the first has gone", q, seen{2, 100 * time.Millisecond, 600 * time.Millisecond})
				if err := b.Hold(bg, time.Minute); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				wantWaits(t, "in a hold", q, seen{2, 100 * time.Millisecond, time.Minute + 600*time.Millisecond}) // it stops the bucket's clock
				pass(time.Minute + 1100*time.Millisecond)
				wantWaits(t, "after the hold", q, seen{1, time.Minute + 1100*time.Millisecond, 500 * time.Millisecond})
				pass(time.Minute)
				wantWaits(t, "at the end", q, seen{})
			})
		})
	}
}

func TestStats_UnknownNextIn(t *testing.T) {
	t.Run("a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.InFlight(1)), Config{})
			p, err := q.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			go q.Acquire(bg, outbound.Cost{1})
			pass(time.Minute)
			wantWaits(t, "in progress", q, seen{1, time.Minute, -1})
			p.Done()
			pass(time.Second)
			wantWaits(t, "at the end", q, seen{})
		})
	})
	t.Run("a trip", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := New(shared(t, &far{Store: store.NewMemory(), way: time.Second}, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
			go q.Acquire(bg, outbound.Cost{1})
			pass(300 * time.Millisecond)
			wantWaits(t, "under way", q, seen{1, 300 * time.Millisecond, -1})
			pass(time.Minute)
		})
	})
	t.Run("an hour that nobody can book yet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Hourly(1))
			q := New(b, Config{})
			for range 4 {
				go q.Acquire(bg, outbound.Cost{1})
				synctest.Wait()
			}
			for range 6 * 60 {
				if s := q.Stats(); s.Waiting > 0 && (s.NextIn < 0 || s.NextIn > time.Hour+time.Minute) {
					t.Errorf("%+v", s)
				}
				pass(time.Minute)
			}
			wantWaits(t, "at the end", q, seen{})
		})
	})
}

// A call whose deadline has passed before it comes counts as refused, and one that was cancelled
// does not: it has never waited.
func TestQueue_StatsCountACallThatComesAfterItsDeadline(t *testing.T) {
	q := New(bucket(t, outbound.PerSecond(1)), Config{})
	ctx, cancel := context.WithDeadline(bg, time.Now().Add(-1))
	defer cancel()
	cancelled, stop := context.WithCancel(bg)
	stop()
	for _, ctx := range []context.Context{ctx, cancelled} {
		if _, err := q.Acquire(ctx, outbound.Cost{1}); err == nil {
			t.Error("admitted")
		}
	}
	if s := q.Stats(); s != (Stats{Refused: 1}) {
		t.Errorf("%+v", s)
	}
}
