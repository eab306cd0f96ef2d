package outbound_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

func labels(b *outbound.Bucket) string {
	s := ""
	for _, l := range b.Limits() {
		s += l.String() + ";"
	}
	return s
}

// The limits of the newest release count for all processes. Limits that an operator has set hold
// through restarts of the program, and until its own limits change.
func TestBucket_NewestReleaseCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, changes := store.NewMemory(), new(atomic.Int64)
		start := func(l ...outbound.Limit) *outbound.Bucket {
			time.Sleep(time.Minute)
			started := time.Now() // the process, and with it the bucket
			aged := outbound.StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				op.Age = time.Since(started)
				r, err := kept.Update(ctx, key, op)
				if op.Action == store.Replace && !r.Stale && err == nil {
					changes.Add(1)
				}
				return r, err
			})
			return outbound.Must(outbound.NewSharedBucket(aged, "api", l...))
		}
		admit := func(b *outbound.Bucket, want string) {
			t.Helper()
			p, err := b.Acquire(background, outbound.Cost{1, 1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
			time.Sleep(time.Second)
			if got := labels(b); got != want {
				t.Errorf("by %s, want %s", got, want)
			}
		}
		ten, five, window := outbound.PerSecond(10), outbound.PerSecond(5), outbound.Window(100, time.Minute).Of(1, "")
		old := start(ten)
		admit(old, "10 per 1s;")
		heard := make(chan outbound.Event, 10)
		defer old.Observe(func(e outbound.Event) { heard <- e })()
		admit(old, "10 per 1s;")
		young := start(five, window)
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(old, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		synctest.Wait()
		if n, e := len(heard), <-heard; n != 1 || e.Kind != outbound.EventLimits || e.Before != "10 per 1s" || e.Limits == e.Before {
			t.Errorf("heard %d changes, the first is %+v", n, e)
		}
		if n := changes.Load(); n != 1 {
			t.Errorf("%d changes of two releases", n)
		}
		if err := young.SetLimits(background, outbound.PerSecond(7), window); err != nil {
			t.Fatal(err)
		}
		again := start(five, window)
		admit(again, "7 per 1s;(unit 1): 100 in any 1m;") // the same program, restarted
		next := start(ten)
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
		if err := next.SetLimits(background, five); err != nil {
			t.Fatal(err)
		}
		admit(again, "5 per 1s;")
		if err := next.SetLimits(background); err != nil {
			t.Fatal(err)
		}
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
	})
}

// A vendor lowers its limit from 10 to 4 a second, and so does the new release. A replica of the old
// one that restarts changes nothing: 80 calls leave in 20 s, and not 199. Neither does an operator's
// change take the version away, nor a day without a call.
func TestBucket_HighestVersionCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := store.NewMemory()
		start := func(n float64, version int) *outbound.Bucket {
			time.Sleep(time.Minute)
			started := time.Now()
			aged := outbound.StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				op.Age = time.Since(started)
				return kept.Update(ctx, key, op)
			})
			l := outbound.PerSecond(n)
			l.Version = version
			return outbound.Must(outbound.NewSharedBucket(aged, "api", l))
		}
		admits := func(want int, by string, all ...*outbound.Bucket) {
			t.Helper()
			n := 0
			for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
				for _, b := range all {
					if _, err := b.Acquire(background, outbound.Cost{1}); err == nil {
						n++
					}
				}
			}
			for _, b := range all {
				if got := labels(b); n != want || got != by {
					t.Errorf("%d calls in 20 s by %s, want %d by %s", n, got, want, by)
				}
			}
		}
		old := start(10, 1)
		admits(199, "10 per 1s, version 1;", old)
		young := start(4, 2)
		admits(80, "4 per 1s, version 2;", young, old)
		restarted := start(10, 1)
		admits(80, "4 per 1s, version 2;", restarted, young)
		unversioned := start(10, 0)
		admits(80, "4 per 1s, version 2;", unversioned, restarted, young)
		if err := young.SetLimits(background, outbound.PerSecond(2)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		admits(40, "2 per 1s, version 2;", start(10, 1), young)
		if err := restarted.SetLimits(background); err != nil { // its own are of a lower version
			t.Fatal(err)
		}
		admits(40, "2 per 1s, version 2;", restarted, young)
		admits(60, "3 per 1s, version 3;", start(3, 3), restarted, young)
	})
}

// Calls in flight have a version, too.
func TestBucket_HighestVersionOfCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := store.NewMemory()
		for i, c := range []struct{ n, version, want int }{{50, 1, 50}, {5, 2, 5}, {50, 1, 5}, {40, 0, 5}, {7, 3, 7}} {
			time.Sleep(time.Minute)
			started := time.Now()
			aged := outbound.StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				op.Age = time.Since(started)
				return kept.Update(ctx, key, op)
			})
			l := outbound.InFlight(c.n)
			l.Version = c.version
			b := outbound.Must(outbound.NewSharedBucket(aged, "api", l, outbound.PerSecond(100)))
			p, err := b.Acquire(background, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
			time.Sleep(time.Second)
			if all := b.Limits(); int(all[1].Capacity) != c.want {
				t.Errorf("start %d: %v, want %d in flight", i, all, c.want)
			}
		}
	})
}

// However often limits are set, no reservation of the next second moves.
func TestBucket_SetLimitsMovesNoReservation(t *testing.T) {
	outbound.BothWays(t, func(t *testing.T, b *outbound.Bucket) {
		q, begin := queue.New(b, queue.Config{}), time.Now()
		var mu sync.Mutex
		var went []time.Duration
		for range 301 {
			go func() {
				if _, err := q.Acquire(background, outbound.Cost{1}); err == nil {
					mu.Lock()
					went = append(went, time.Since(begin))
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(background, 29*time.Second)
		defer cancel()
		for i := 0; ctx.Err() == nil; i++ {
			if err := b.SetLimits(ctx, outbound.PerSecond(10+float64(i%2)/10)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(went); n != 301 || went[n-1] > 31*time.Second {
			t.Errorf("%d calls in %v", n, went[max(0, n-1)])
		}
	}, outbound.PerSecond(10))
}

// A pause stops calls, and changes no limit: nothing is filled, and calls leave afterwards as if
// none had come meanwhile.
func TestBucket_PauseFillsNothing(t *testing.T) {
	limits := []outbound.Limit{{Capacity: 1000, LeakRate: 1000}, outbound.Monthly(1000, time.UTC), outbound.PerHour(1000).Burst(500).Of(0, "hour")}
	outbound.BothWays(t, func(t *testing.T, b *outbound.Bucket) {
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		if err := b.Pause(background, time.Second); err != nil {
			t.Fatal(err)
		}
		var full *outbound.ThrottledError
		if _, err := b.Acquire(background, outbound.Cost{1}); !errors.As(err, &full) || !full.Held || full.RetryAfter != time.Second {
			t.Errorf("paused: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := b.Acquire(background, outbound.Cost{500}); err != nil {
			t.Errorf("after the pause: %v", err)
		}
		if err := errors.Join(b.Pause(background, time.Hour), b.Resume(background)); err != nil {
			t.Fatal(err)
		}
		if s, err := b.State(background); err != nil || s.HeldFor != 0 || s.Level > 500 {
			t.Errorf("resumed: %+v, %v", s, err)
		}
		if err := b.Pause(background, 0); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("a pause of 0: %v", err)
		}
	}, limits...)
}

// A pause lets the limits leak, also if a call left a moment before: 5 of 6 go after 2 s, as with
// block_for of the Ruby library Prorate.
func TestBucket_PauseLetsTheLimitsLeak(t *testing.T) {
	for _, before := range []time.Duration{0, time.Millisecond, time.Second / 20, time.Second / 5} {
		outbound.BothWays(t, func(t *testing.T, b *outbound.Bucket) {
			take := func() (n int) {
				for range 6 {
					if _, err := b.Acquire(background, outbound.Cost{1}); err == nil {
						n++
					}
				}
				return n
			}
			first := take()
			time.Sleep(before)
			if err := b.Pause(background, 2*time.Second); err != nil {
				t.Fatal(err)
			}
			blocked := take()
			time.Sleep(2 * time.Second)
			if then := take(); first != 5 || blocked != 0 || then != 5 {
				t.Errorf("%v before a pause %d of 6 left, in it %d, then %d, want 5, 0, 5", before, first, blocked, then)
			}
		}, outbound.Limit{Capacity: 5, LeakRate: 5})
	}
}
