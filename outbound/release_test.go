package outbound

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

func limitsOf(b *Bucket) string {
	s := ""
	for _, l := range b.Limits() {
		s += l.String() + ";"
	}
	return s
}

// startNow returns the bucket of a process that starts now, a minute after the last one.
func startNow(kept store.Store, limits ...Limit) *Bucket {
	time.Sleep(time.Minute)
	started := time.Now() // the process, and with it the bucket
	return Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		op.Age = time.Since(started)
		return kept.Update(ctx, key, op)
	}), "api", limits...))
}

// of returns a limit with a version.
func of(version int, l Limit) Limit {
	l.Version = version
	return l
}

// The limits of the newest release count for all processes.
func TestBucket_Releases(t *testing.T) {
	// Limits that an operator has set hold through restarts of the program, and until its own limits change.
	bubble(t, "The limits of the newest release count for all processes", func(t *testing.T) {
		memory, changes := store.NewMemory(), new(atomic.Int64)
		kept := StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			r, err := memory.Update(ctx, key, op)
			if op.Action == store.Replace && !r.Stale && err == nil {
				changes.Add(1)
			}
			return r, err
		})
		admit := func(b *Bucket, want string) {
			t.Helper()
			p := admit(t, b, 1, 1)
			p.Done()
			time.Sleep(time.Second)
			got := limitsOf(b)
			errorIf(t, got != want, "by %s, want %s", got, want)
		}
		ten, five, window := PerSecond(10), PerSecond(5), Window(100, time.Minute).Of(1, "")
		old := startNow(kept, ten)
		admit(old, "10 per 1s;")
		heard := make(chan Event, 10)
		defer old.Observe(func(e Event) { heard <- e })()
		admit(old, "10 per 1s;")
		young := startNow(kept, five, window)
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(old, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		synctest.Wait()
		if n, e := len(heard), <-heard; n != 1 || e.Kind != EventLimits || e.Before != "10 per 1s" || e.Limits == e.Before {
			t.Errorf("heard %d changes, the first is %+v", n, e)
		}
		equal(t, changes.Load(), 1, "changes of two releases")
		must(t, young.SetLimits(ctx, PerSecond(7), window))
		again := startNow(kept, five, window)
		admit(again, "7 per 1s;(unit 1): 100 in any 1m;") // the same program, restarted
		next := startNow(kept, ten)
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
		must(t, next.SetLimits(ctx, five))
		admit(again, "5 per 1s;")
		must(t, next.SetLimits(ctx))
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
	})
	// A replica of the old one that restarts changes nothing: 80 calls leave in 20 s, and not 199. Neither
	// does an operator's change take the version away, nor a day without a call.
	bubble(t, "A vendor lowers its limit from 10 to 4 a second, and so does the new release", func(t *testing.T) {
		kept := store.NewMemory()
		starts := func(n float64, version int) *Bucket { return startNow(kept, of(version, PerSecond(n))) }
		admits := func(want int, by string, all ...*Bucket) {
			t.Helper()
			n := 0
			for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
				for _, b := range all {
					if _, err := b.Acquire(ctx, Cost{1}); err == nil {
						n++
					}
				}
			}
			for _, b := range all {
				got := limitsOf(b)
				errorIf(t, n != want || got != by, "%d calls in 20 s by %s, want %d by %s", n, got, want, by)
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
		must(t, young.SetLimits(ctx, PerSecond(2)))
		time.Sleep(24 * time.Hour)
		admits(40, "2 per 1s, version 2;", starts(10, 1), young)
		if err := restarted.SetLimits(ctx); err != nil { // its own are of a lower version
			t.Fatal(err)
		}
		admits(40, "2 per 1s, version 2;", restarted, young)
		admits(60, "3 per 1s, version 3;", starts(3, 3), restarted, young)
	})
	bubble(t, "Calls in flight have a version, too", func(t *testing.T) {
		kept := store.NewMemory()
		for i, c := range []struct{ n, version, want int }{{50, 1, 50}, {5, 2, 5}, {50, 1, 5}, {40, 0, 5}, {7, 3, 7}} {
			b := startNow(kept, of(c.version, InFlight(c.n)), PerSecond(100))
			p := admit(t, b, 1)
			p.Done()
			time.Sleep(time.Second)
			all := b.Limits()
			errorIf(t, int(all[1].Capacity) != c.want, "start %d: %v, want %d in flight", i, all, c.want)
		}
	})
}

// A pause stops calls, and changes no limit: nothing is filled, and calls leave afterwards as if
// none had come meanwhile.
func TestBucket_PauseFillsNothing(t *testing.T) {
	limits := []Limit{{Capacity: 1000, LeakRate: 1000}, Monthly(1000, time.UTC), PerHour(1000).Burst(500).Of(0, "hour")}
	bothWays(t, func(t *testing.T, b *Bucket) {
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		must(t, b.Pause(ctx, time.Second))
		var full *ThrottledError
		_, err := b.Acquire(ctx, Cost{1})
		errorIf(t, !errors.As(err, &full) || !full.Held || full.RetryAfter != time.Second, "paused: %v", err)
		time.Sleep(time.Second)
		errorIs(t, errOf(b.Acquire(ctx, Cost{500})), nil, "after the pause")
		must(t, errors.Join(b.Pause(ctx, time.Hour), b.Resume(ctx)))
		if s, err := b.State(ctx); err != nil || s.HeldFor != 0 || s.Level > 500 {
			t.Errorf("resumed: %+v, %v", s, err)
		}
		errorIs(t, b.Pause(ctx, 0), ErrInvalid, "a pause of 0")
	}, limits...)
}
