package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// If a fault makes a level wrong, or a limit takes months, the queue refuses a call without a
// deadline: it would wait for ever.
func TestQueue_RefusesBeyondADayUnlessAsked(t *testing.T) {
	const day = 24 * time.Hour
	month := outbound.Limit{Capacity: 10, LeakRate: 10 / (30 * day).Seconds()}
	for name, of := range map[string]func() *outbound.Bucket{
		"in memory": func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", month)) },
		"shared": func() *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", month))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := of()
			if _, err := b.Fillup(bg, outbound.Cost{10}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			q := New(b, Config{})
			var refused [5]error
			for i := range refused {
				go func() { _, refused[i] = q.Acquire(bg, outbound.Cost{10}) }()
			}
			synctest.Wait()
			time.Sleep(time.Second)
			for i, err := range refused {
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || !errors.Is(err, ErrFar) || full.RetryAfter < 29*day {
					t.Errorf("%s: the call %d: %v", name, i, err)
				}
			}
			if s, err := b.State(bg); err != nil || s.Level > 10 || q.Len() != 0 {
				t.Errorf("%s: level %v (%v), %d wait", name, s.Level, err, q.Len())
			}
			// A call that fits within a day waits.
			if p, err := q.Acquire(bg, outbound.Cost{0.3}); err != nil || time.Since(begin) < day/2 {
				t.Errorf("%s: within a day: %v after %v", name, err, time.Since(begin))
			} else {
				p.Done()
			}
			asked, cancel := context.WithTimeout(bg, 40*day)
			defer cancel()
			for how, c := range map[string]struct {
				q   *Queue
				ctx context.Context
			}{"MaxWait": {New(b, Config{MaxWait: 40 * day}), bg}, "a deadline": {q, asked}} {
				begin = time.Now()
				if _, err := c.q.Acquire(c.ctx, outbound.Cost{1}); err != nil || time.Since(begin) < 2*day {
					t.Errorf("%s, by %s: %v after %v", name, how, err, time.Since(begin))
				}
			}
		})
	}
}

// A call without MaxWait and deadline waits for a day at most, also behind others. One whose ctx has
// a deadline waits until then.
func TestQueue_CallWithoutDeadlineWaitsForADayAtMost(t *testing.T) {
	for name, of := range buckets(outbound.Limit{Capacity: 1, LeakRate: 1. / 3600}) {
		synctest.Test(t, func(t *testing.T) {
			q := New(of(), Config{})
			var went, refused atomic.Int32
			call := func(ctx context.Context) {
				begin := time.Now()
				var full *outbound.ThrottledError
				switch _, err := q.Acquire(ctx, outbound.Cost{1}); {
				case err == nil:
					went.Add(1)
				case !errors.Is(err, ErrFar) || !errors.As(err, &full) || full.RetryAfter != 25*time.Hour || time.Since(begin) > 0:
					t.Errorf("%s: %v after %v", name, err, time.Since(begin))
				default:
					refused.Add(1)
				}
			}
			for range 28 {
				go call(bg)
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(bg, 26*time.Hour)
			defer cancel()
			go call(ctx)
			time.Sleep(26 * time.Hour)
			synctest.Wait()
			if went.Load() != 26 || refused.Load() != 3 { // one went immediately, 24 in a day, and one by its own deadline
				t.Errorf("%s: %d went, %d refused", name, went.Load(), refused.Load())
			}
		})
	}
}

// Only calls that take as much as the refused one are as far away.
func TestQueue_RefusalBeyondADayIsOfThatCallAlone(t *testing.T) {
	const day = 24 * time.Hour
	limits := []outbound.Limit{outbound.PerSecond(10).Burst(1), {Capacity: 2, LeakRate: 1 / (2 * day).Seconds(), Unit: 1}}
	for name, of := range map[string]func() *outbound.Bucket{
		"in memory": func() *outbound.Bucket { return bucket(t, limits...) },
		"shared":    func() *outbound.Bucket { return shared(t, store.NewMemory(), limits...) },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := of()
			q := New(b, Config{})
			if _, err := b.Acquire(bg, outbound.Cost{1, 2}); err != nil { // the reports of four days
				t.Fatal(err)
			}
			costs := []outbound.Cost{{1}, {1}, {1, 1}, {1}, {1, 2}, {1}, {outbound.Free, 1}, {1}, {1, 1}, {1}}
			errs := make([]error, len(costs))
			at := make([]time.Time, len(costs))
			begin := time.Now()
			for i, c := range costs {
				go func() {
					_, errs[i] = q.Acquire(bg, c)
					at[i] = time.Now()
				}()
				synctest.Wait()
			}
			pass(time.Minute)
			went, seen := time.Duration(0), map[*outbound.ThrottledError]bool{}
			for i, c := range costs {
				if c == (outbound.Cost{1}) {
					went++
					if in := at[i].Sub(begin); errs[i] != nil || in < went*99*time.Millisecond || in > went*130*time.Millisecond {
						t.Errorf("%s: the call %d: %v after %v, want it to go as number %d", name, i, errs[i], in, went)
					}
					continue
				}
				var far *outbound.ThrottledError
				want := time.Duration(c[1]) * 2 * day
				if !errors.As(errs[i], &far) || !errors.Is(far, ErrFar) || far.RetryAfter > want || far.RetryAfter < want-time.Minute {
					t.Errorf("%s: the call %d of %v: %v, want about %v", name, i, c, errs[i], want)
				} else if seen[far] {
					t.Errorf("%s: the call %d has the error of another", name, i)
				}
				seen[far] = true
			}
		})
	}
}
