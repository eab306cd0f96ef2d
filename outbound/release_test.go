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

// start returns the bucket of a process that starts now, a minute after the last one.
func start(kept store.Store, limits ...outbound.Limit) *outbound.Bucket {
	time.Sleep(time.Minute)
	started := time.Now() // the process, and with it the bucket
	return outbound.Must(outbound.NewSharedBucket(outbound.StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		op.Age = time.Since(started)
		return kept.Update(ctx, key, op)
	}), "api", limits...))
}

// of returns a limit with a version.
func of(version int, l outbound.Limit) outbound.Limit {
	l.Version = version
	return l
}

// The limits of the newest release count for all processes. Limits that an operator has set hold
// through restarts of the program, and until its own limits change.
func TestBucket_NewestReleaseCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, changes := store.NewMemory(), new(atomic.Int64)
		kept := outbound.StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			r, err := memory.Update(ctx, key, op)
			if op.Action == store.Replace && !r.Stale && err == nil {
				changes.Add(1)
			}
			return r, err
		})
		admit := func(b *outbound.Bucket, want string) {
			t.Helper()
			p, err := b.Acquire(background, outbound.Cost{1, 1})
			outbound.NoError(t, err)
			p.Done()
			time.Sleep(time.Second)
			got := labels(b)
			outbound.ErrorIf(t, got != want, "by %s, want %s", got, want)
		}
		ten, five, window := outbound.PerSecond(10), outbound.PerSecond(5), outbound.Window(100, time.Minute).Of(1, "")
		old := start(kept, ten)
		admit(old, "10 per 1s;")
		heard := make(chan outbound.Event, 10)
		defer old.Observe(func(e outbound.Event) { heard <- e })()
		admit(old, "10 per 1s;")
		young := start(kept, five, window)
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
		outbound.NoError(t, young.SetLimits(background, outbound.PerSecond(7), window))
		again := start(kept, five, window)
		admit(again, "7 per 1s;(unit 1): 100 in any 1m;") // the same program, restarted
		next := start(kept, ten)
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
		outbound.NoError(t, next.SetLimits(background, five))
		admit(again, "5 per 1s;")
		outbound.NoError(t, next.SetLimits(background))
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
		starts := func(n float64, version int) *outbound.Bucket { return start(kept, of(version, outbound.PerSecond(n))) }
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
				got := labels(b)
				outbound.ErrorIf(t, n != want || got != by, "%d calls in 20 s by %s, want %d by %s", n, got, want, by)
			}
		}
		old := starts(10, 1)
		admits(199, "10 per 1s, version 1;", old)
		young := starts(4, 2)
		admits(80, "4 per 1s, version 2;", young, old)
		restarted := starts(10, 1)
		admits(80, "4 per 1s, version 2;", restarted, young)
		unversioned := starts(10, 0)
		admits(80, "4 per 1s, version 2;", unversioned, restarted, young)
		outbound.NoError(t, young.SetLimits(background, outbound.PerSecond(2)))
		time.Sleep(24 * time.Hour)
		admits(40, "2 per 1s, version 2;", starts(10, 1), young)
		if err := restarted.SetLimits(background); err != nil { // its own are of a lower version
			t.Fatal(err)
		}
		admits(40, "2 per 1s, version 2;", restarted, young)
		admits(60, "3 per 1s, version 3;", starts(3, 3), restarted, young)
	})
}

// Calls in flight have a version, too.
func TestBucket_HighestVersionOfCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := store.NewMemory()
		for i, c := range []struct{ n, version, want int }{{50, 1, 50}, {5, 2, 5}, {50, 1, 5}, {40, 0, 5}, {7, 3, 7}} {
			b := start(kept, of(c.version, outbound.InFlight(c.n)), outbound.PerSecond(100))
			p, err := b.Acquire(background, outbound.Cost{1})
			outbound.NoError(t, err)
			p.Done()
			time.Sleep(time.Second)
			all := b.Limits()
			outbound.ErrorIf(t, int(all[1].Capacity) != c.want, "start %d: %v, want %d in flight", i, all, c.want)
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
			err := b.SetLimits(ctx, outbound.PerSecond(10+float64(i%2)/10))
			outbound.FatalIf(t, err != nil && !errors.Is(err, context.DeadlineExceeded), "%v", err)
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		n := len(went)
		outbound.ErrorIf(t, n != 301 || went[n-1] > 31*time.Second, "%d calls in %v", n, went[max(0, n-1)])
	}, outbound.PerSecond(10))
}

// A pause stops calls, and changes no limit: nothing is filled, and calls leave afterwards as if
// none had come meanwhile.
func TestBucket_PauseFillsNothing(t *testing.T) {
	limits := []outbound.Limit{{Capacity: 1000, LeakRate: 1000}, outbound.Monthly(1000, time.UTC), outbound.PerHour(1000).Burst(500).Of(0, "hour")}
	outbound.BothWays(t, func(t *testing.T, b *outbound.Bucket) {
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		outbound.NoError(t, b.Pause(background, time.Second))
		var full *outbound.ThrottledError
		_, err := b.Acquire(background, outbound.Cost{1})
		outbound.ErrorIf(t, !errors.As(err, &full) || !full.Held || full.RetryAfter != time.Second, "paused: %v", err)
		time.Sleep(time.Second)
		_, err = b.Acquire(background, outbound.Cost{500})
		outbound.ErrorIf(t, err != nil, "after the pause: %v", err)
		outbound.NoError(t, errors.Join(b.Pause(background, time.Hour), b.Resume(background)))
		if s, err := b.State(background); err != nil || s.HeldFor != 0 || s.Level > 500 {
			t.Errorf("resumed: %+v, %v", s, err)
		}
		err = b.Pause(background, 0)
		outbound.ErrorIf(t, !errors.Is(err, outbound.ErrInvalid), "a pause of 0: %v", err)
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
			outbound.NoError(t, b.Pause(background, 2*time.Second))
			blocked := take()
			time.Sleep(2 * time.Second)
			if then := take(); first != 5 || blocked != 0 || then != 5 {
				t.Errorf("%v before a pause %d of 6 left, in it %d, then %d, want 5, 0, 5", before, first, blocked, then)
			}
		}, outbound.Limit{Capacity: 5, LeakRate: 5})
	}
}
