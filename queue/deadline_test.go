package queue

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const day = 24 * time.Hour

// A call that its deadline ends is rate limited: its error is a ThrottledError and also
// context.DeadlineExceeded, whether the queue or the context ends it first. A call that its caller
// cancels gets the context's error alone.
func TestDeadline_DiffersFromCancel(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"in flight and a rate": {outbound.PerSecond(1000), outbound.InFlight(1)},
		"a rate":               {outbound.PerHour(1)},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, limits...), Config{})
			first := admitted(t, q, 1)
			var calls sync.WaitGroup
			for i := range 200 {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				if i%2 == 0 {
					time.AfterFunc(time.Second/2, cancel)
				}
				calls.Go(func() {
					defer cancel()
					_, err := q.Acquire(ctx, one)
					throttled, late := errors.Is(err, outbound.ErrThrottled), errors.Is(err, context.DeadlineExceeded)
					errorIf(t, i%2 == 1 && !(throttled && late),
						"%s: after the deadline: %v, want a ThrottledError that is DeadlineExceeded", name, err)
					if i%2 == 0 && err != context.Canceled && !(throttled && late) { // a far reservation is refused early
						t.Errorf("%s: after the cancel: %v, want context.Canceled", name, err)
					}
				})
			}
			calls.Wait()
			first.Done()
			if s := q.Stats(); s.Refused+s.Cancelled != 200 || s.Refused < 100 || s.Waiting != 0 {
				t.Errorf("%s: stats %+v, want 200 calls refused or cancelled", name, s)
			}
			if s, err := q.Bucket().State(bg); err != nil || s.Level > 1 {
				t.Errorf("%s: level %v, %v: a call that did not leave was charged", name, s.Level, err)
			}
		})
	}
}

// Each limiter with capacity returns the ctx's own error for a call whose ctx has ended, and none
// reports a refusal. A queue does not count it: it has never waited.
func TestDeadline_PassedIsNoRefusalOfAnyLimiter(t *testing.T) {
	of := func() *outbound.Bucket { return bucket(t, outbound.PerSecond(1)) }
	keyed := func(most int, over outbound.Limiter) outbound.Limiter {
		k := &outbound.Keyed[string]{Max: most, Overflow: over, New: func(string) (outbound.Limiter, error) { return New(of(), Config{}), nil }}
		if _, err := k.Acquire(bg, "first", one); err != nil {
			t.Fatal(err)
		}
		return k.For("k")
	}
	past, end := context.WithDeadline(bg, time.Now().Add(-1))
	defer end()
	cancelled, stop := context.WithCancel(bg)
	stop()
	q := New(of(), Config{})
	for name, l := range map[string]outbound.Limiter{
		"bucket": of(), "shared": shared(t, store.NewMemory(), outbound.PerSecond(1)), "queue": q,
		"in flight": New(bucket(t, outbound.PerSecond(1), outbound.InFlight(1)), Config{}),
		"keyed":     keyed(9, nil), "full": keyed(1, nil), "overflow": keyed(1, New(of(), Config{})),
		"pool":   &outbound.Pool{Members: []outbound.Limiter{of(), New(of(), Config{})}},
		"within": outbound.Within(New(of(), Config{}), of()), "unlimited": outbound.Unlimited{},
	} {
		for _, ctx := range []context.Context{past, cancelled} {
			kind := ""
			_, err := outbound.Observe(l, "", func(_ context.Context, e outbound.Event) { kind = e.Kind }).Acquire(ctx, one)
			errorIf(t, err == nil || err != ctx.Err() || kind != outbound.EventFailed, "%s: %v, %s", name, err, kind)
		}
	}
	s := q.Stats()
	errorIf(t, s != (Stats{}), "%+v", s)
}

// Calls whose deadline passes while the first request to a store is on its way get their ctx's own
// error, all of them: the store has capacity. Behind a call that waits they are refused.
func TestDeadline_PassedBeforeTheStoreReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: time.Second}, outbound.Limit{Capacity: 5, LeakRate: 1}), Config{})
		for _, c := range comeAll(3, bg, q, 1) {
			defer c.ended()
		}
		soon := comeIn(t, 50*ms, q, 1)
		if pass(time.Second); soon.ended().err != context.DeadlineExceeded || soon.took() != 50*ms {
			t.Errorf("%v after %v", soon.ended().err, soon.took())
		}
		pass(10 * time.Second)
		comeAll(20, bg, q, 1)
		pass(5 * time.Second)
		fatalIf(t, q.Len() < 2, "%d wait", q.Len())
		c := comeIn(t, 50*ms, q, 1)
		if pass(time.Second); !errors.Is(c.refused().Err, context.DeadlineExceeded) || c.refused().Left() != 50*ms {
			t.Errorf("behind others: %v", c.ended().err)
		}
		pass(time.Minute)
	})
}

// A call that could be answered no longer is refused before its ctx has ended, and then the error is
// not that of its ctx, although the store has not replied.
func TestDeadline_IsNotOverBeforeTheCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int64
		f := &far{Store: store.NewMemory(), way: 5 * ms, late: func(int) time.Duration { return time.Duration(late.Load()) }}
		q := New(shared(t, f, outbound.PerSecond(100)), Config{CallTime: time.Second})
		for range 9 {
			come(bg, q, 1)
			pass(time.Second)
		}
		late.Store(int64(900 * ms))
		comeIn(t, 50*ms, q, 1)
		pass(100 * ms)
		c := comeIn(t, 1200*ms, q, 1)
		if pass(time.Minute); !errors.Is(c.refused().Err, context.DeadlineExceeded) || c.took() > time.Second {
			t.Errorf("%v after %v", c.ended().err, c.took())
		}
	})
}

// A call that comes while no other waits is refused by the bucket, with the reason why it does not
// wait longer.
func TestDeadline_RefusalOfTheBucketHasTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1.0 / (48 * 3600)})
		admitted(t, b, 1)
		soon, stop := context.WithTimeout(bg, time.Minute)
		defer stop()
		for _, c := range []struct {
			ctx     context.Context
			maxWait time.Duration
			want    error
		}{
			{bg, 0, ErrFar}, {bg, time.Hour, nil}, {soon, time.Hour, context.DeadlineExceeded}, {soon, 0, context.DeadlineExceeded},
		} {
			q := New(b, Config{MaxWait: c.maxWait})
			full := come(c.ctx, q, 1).refused()
			errorIf(t, !errors.Is(full.Err, c.want) || full.RetryAfter < 47*time.Hour || q.Stats() != (Stats{Refused: 1}),
				"%+v, %+v, want %v", full, q.Stats(), c.want)
		}
	})
}

// If a fault makes a level wrong, or a limit takes months, the queue refuses a call without a
// deadline, which would wait for ever. A call with a MaxWait or a deadline waits for days.
func TestDeadline_WithoutOneACallWaitsForADayAtMost(t *testing.T) {
	notRaced(t)
	month := outbound.Limit{Capacity: 10, LeakRate: 10 / (30 * day).Seconds()}
	bothWays(t, []outbound.Limit{month}, func(t *testing.T, b *outbound.Bucket) {
		if _, err := b.Fillup(bg, outbound.Cost{10}); err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		refused := comeAll(5, bg, q, 10)
		time.Sleep(time.Second)
		for i, c := range refused {
			errorIf(t, !errors.Is(c.ended().err, ErrFar) || c.refused().RetryAfter < 29*day,
				"call %d: %v", i, c.ended().err)
		}
		s, err := b.State(bg)
		errorIf(t, err != nil || s.Level > 10 || q.Len() != 0, "level %v (%v), %d wait", s.Level, err, q.Len())
		within := come(bg, q, 0.3)
		if pass(day); within.ended().err != nil || within.took() < day/2 {
			t.Errorf("within a day: %v after %v", within.ended().err, within.took())
		}
		patient := calls{come(bg, New(b, Config{MaxWait: math.MaxInt64}), 1), comeIn(t, 40*day, q, 1)} // the longest does not overflow
		pass(40 * day)
		for i, c := range patient {
			errorIf(t, c.ended().err != nil || c.took() < 2*day,
				"call %d with a limit of its own: %v after %v", i, c.ended().err, c.took())
		}
	})
	// Calls behind others wait for a day at most, too.
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 1. / 3600}}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		all := append(comeAll(28, bg, q, 1), comeIn(t, 26*time.Hour, q, 1))
		pass(26 * time.Hour)
		for i, c := range all {
			if far := i > 24 && i < 28; far && (!errors.Is(c.ended().err, ErrFar) || c.refused().RetryAfter != 25*time.Hour || c.took() > 0) || !far && !c.admitted() {
				t.Errorf("call %d: %v after %v", i, c.ended().err, c.took())
			}
		}
	})
}

// Only calls that need the same limit as the refused one are as far away.
func TestDeadline_RefusalBeyondADayIsOfThatCallAlone(t *testing.T) {
	limits := []outbound.Limit{outbound.PerSecond(10).Burst(1), {Capacity: 2, LeakRate: 1 / (2 * day).Seconds(), Unit: 1}}
	bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		admitted(t, b, 1, 2) // the reports of four days
		var all calls
		for _, c := range []outbound.Cost{{1}, {1}, {1, 1}, {1}, {1, 2}, {1}, {outbound.Free, 1}, {1}, {1, 1}, {1}} {
			all = append(all, come(bg, q, c[:]...))
		}
		pass(time.Minute)
		left, seen := time.Duration(0), map[*outbound.ThrottledError]bool{}
		for i, c := range all {
			if c.cost == one {
				left++
				errorIf(t, c.ended().err != nil || c.took() < left*99*ms || c.took() > left*130*ms,
					"call %d: %v after %v, want it to leave as number %d", i, c.ended().err, c.took(), left)
				continue
			}
			far, want := c.refused(), time.Duration(c.cost[1])*2*day
			errorIf(t, !errors.Is(far, ErrFar) || far.RetryAfter > want || far.RetryAfter < want-time.Minute || seen[far],
				"call %d of %v: %v, want about %v and an error of its own", i, c.cost, c.ended().err, want)
			seen[far] = true
		}
	})
}

// A MaxWait of a whole number of intervals admits the call that leaves exactly at its end,
// however the intervals are rounded.
func TestMaxWait_AdmitsACallExactlyAtItsEnd(t *testing.T) {
	for _, l := range []outbound.Limit{{Capacity: 1, LeakRate: 10}, {Capacity: 1, LeakRate: 3}, {Capacity: 2, LeakRate: 0.7}, {Capacity: 1, LeakRate: 1e4 / 7}, outbound.PerMinute(17)} {
		for _, intervals := range []float64{1, 3, 70} {
			bothWays(t, []outbound.Limit{l}, func(t *testing.T, b *outbound.Bucket) {
				q := New(b, Config{MaxWait: time.Duration(intervals / l.LeakRate * 1e9)})
				n := int(l.Capacity + intervals)
				all := comeAll(n+1, bg, q, 1)
				pass(time.Hour)
				if left, _ := all.admitted(); left != n || all[n].refused().RetryAfter == 0 {
					t.Errorf("%v, %v intervals: %d left, want %d; the last: %v", l, intervals, left, n, all[n].ended().err)
				}
			})
		}
	}
}

// A queue that catches up with another process books reservations far behind its first. A call that would
// wait longer than its MaxWait for one of those is refused then, and leaves it to another.
func TestMaxWait_HoldsWhileTheQueueCatchesUp(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 1}}, func(t *testing.T, b *outbound.Bucket) {
		const most = 7500 * ms
		all := comeAll(8, bg, New(b, Config{MaxWait: most}), 1)
		pass(1500 * ms) // the queue has begun its backlog
		other := outbound.BookRequest{Costs: []outbound.Cost{one}, Wait: time.Hour, Claim: math.Inf(1)}
		for range 4 {
			must(t, b.Book(bg, &other))
		}
		pass(time.Minute)
		for i, c := range all {
			if c.ended().err == nil && c.took() > most+rounding || c.ended().err != nil && (c.took() > 2*time.Second || (c.refused().RetryAfter+c.took()-8*time.Second).Abs() > rounding) {
				t.Errorf("call %d: %v after %v", i, c.ended().err, c.took())
			}
		}
		n, _ := all.admitted()
		errorIf(t, n != 4, "%d of 8 left, want 4", n)
	})
}

// A call whose reservation was lost, because the process was late, gets the next one. If that is after its
// MaxWait, the call is refused immediately, and the next call has the reservation.
func TestMaxWait_HoldsForALostReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, begin := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxWait: 1500 * ms}), time.Now()
		come(bg, q, 1)
		first := come(bg, q, 1)
		pass(600 * ms)
		second := come(bg, q, 1)
		pass(397 * ms) // both have reservations
		pause(q, 100*ms)
		pass(time.Minute)
		if at := first.ended().left.Sub(begin); at > 1100*ms || first.refused().RetryAfter != 2*time.Second-at {
			t.Errorf("the first: %v after %v", first.ended().err, at)
		}
		at := second.ended().left.Sub(begin)
		errorIf(t, second.ended().err != nil || at != 2*time.Second, "the second: %v after %v", second.ended().err, at)
	})
}

// MaxWait bounds the wait for capacity and does not count the store's distance. The deadline of a ctx
// counts all.
func TestMaxWait_ShorterThanARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 50 * ms}, outbound.PerSecond(100)), Config{MaxWait: 10 * ms})
		for range 5 {
			admitted(t, q, 1)
			time.Sleep(time.Second)
		}
		c := comeIn(t, 40*ms, q, 1)
		pass(time.Second)
		errorIf(t, !errors.Is(c.ended().err, context.DeadlineExceeded), "%v", c.ended().err)
	})
}
