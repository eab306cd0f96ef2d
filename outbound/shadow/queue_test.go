package shadow_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
	"github.com/dripfeed/dripfeed/queue"
)

// arrival is a call that comes whether or not earlier ones were answered.
type arrival struct {
	at, within, took time.Duration // within 0: its ctx has no deadline
	cost             outbound.Cost
}

// arrivals are 400 calls at random times, 15 per second on an average. Mixed ones have costs of 1 to
// 3, and some have deadlines.
func arrivals(seed uint64, mixed bool) (all []arrival) {
	rnd := rand.New(rand.NewPCG(seed, 18))
	at := time.Duration(0)
	for range 400 {
		at += time.Duration(rnd.ExpFloat64() * float64(time.Second) / 15)
		a := arrival{at: at, took: time.Duration(rnd.Int64N(int64(60 * time.Millisecond))), cost: outbound.Cost{1}}
		if mixed && rnd.IntN(4) == 0 {
			a.within = time.Duration(rnd.Int64N(int64(4 * time.Second)))
		}
		if mixed {
			a.cost[0] = float64(1 + rnd.IntN(3))
		}
		all = append(all, a)
	}
	return all
}

// outcome is the result of a call, or what it would have been.
type outcome struct {
	wait time.Duration
	err  string
}

func outcomeOf(wait time.Duration, err error) outcome {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return outcome{err: "deadline"}
	case errors.Is(err, outbound.ErrThrottled):
		return outcome{err: "throttled"}
	case err != nil:
		return outcome{err: err.Error()}
	}
	return outcome{wait: wait}
}

// number is the key of a call's number in its ctx.
type number struct{}

// run makes the calls, each in a goroutine, and returns what becomes of them.
func run(all []arrival, l outbound.Limiter) []outcome {
	results := make([]outcome, len(all))
	var wg sync.WaitGroup
	begin := time.Now()
	for i, a := range all {
		time.Sleep(a.at - time.Since(begin))
		wg.Go(func() {
			ctx := context.WithValue(ctx, number{}, i)
			if a.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.within)
				defer cancel()
			}
			came := time.Now()
			p, err := l.Acquire(ctx, a.cost)
			results[i] = outcomeOf(time.Since(came), err)
			time.Sleep(a.took)
			p.Done()
		})
		synctest.Wait() // so that calls come in their order
	}
	wg.Wait()
	return results
}

// A shadow reports for each call what the queue does with it, except for rounding, which
// is a nanosecond a call. It delays no call.
func TestShadow_VerdictIsWhatTheQueueDoes(t *testing.T) {
	for i, c := range []struct {
		limits []outbound.Limit
		mixed  bool
		wait   time.Duration
		near   time.Duration // a window has 64 parts: the part of a call depends on when it was booked
	}{
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 5 * time.Second, time.Microsecond},
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 0, time.Microsecond},
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 1, time.Microsecond},
		{[]outbound.Limit{{Capacity: 5, LeakRate: 10}}, true, 5 * time.Second, time.Microsecond},
		{[]outbound.Limit{outbound.PerSecond(12).Burst(3), outbound.PerMinute(500).Of(0, "minute")}, true, 5 * time.Second, time.Microsecond},
		{[]outbound.Limit{outbound.Window(40, 4*time.Second)}, false, 0, 4 * time.Second / 64},
		{[]outbound.Limit{outbound.Window(40, 4*time.Second)}, false, 5 * time.Second, 4 * time.Second / 64},
	} {
		all := arrivals(uint64(i), c.mixed)
		inBubbles(t, func(t *testing.T, shared bool) {
			enforced := run(all, queue.New(newBucket(shared, c.limits...), queue.Config{MaxWait: c.wait, CallTime: -1}))
			reported := make([]outcome, len(all))
			passed := run(all, shadow.New(newBucket(shared, c.limits...), c.wait, func(ctx context.Context, v shadow.Verdict) {
				reported[ctx.Value(number{}).(int)] = outcomeOf(v.Wait, v.Err)
			}))
			synctest.Wait()
			waited, refused := 0, 0
			for i, e := range enforced {
				if e.err != "" {
					refused++
				} else if e.wait > 0 {
					waited++
				}
				if off := e.wait - reported[i].wait; off.Abs() > c.near || e.err != reported[i].err {
					t.Errorf("%v, MaxWait %v, call %d: reported %v, and the queue: %v", c.limits, c.wait, i, reported[i], e)
				}
				errorIf(t, passed[i] != (outcome{}), "a shadow has delayed or refused a call: %v", passed[i])
			}
			errorIf(t, c.wait != 1 && waited < 50 || c.wait > 0 && refused < 30,
				"%v: %d calls have waited and %d were refused: too few to compare", c.limits, waited, refused)
		})
	}
}

// A caller that waits for an answer before it calls again is slowed down by the queue. Its real
// waits are shorter than the verdicts, which take calls to be independent.
func TestShadow_VerdictTakesCallsToBeIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		longest := func(l outbound.Limiter) (d time.Duration) {
			for range 10 {
				came := time.Now()
				p, _ := l.Acquire(ctx, outbound.Cost{1})
				p.Done()
				d = max(d, time.Since(came))
				time.Sleep(50 * time.Millisecond)
			}
			return d.Truncate(time.Millisecond)
		}
		var reported verdicts
		real := longest(queue.New(newBucket(false, outbound.PerSecond(10)), queue.Config{}))
		longest(shadow.New(newBucket(false, outbound.PerSecond(10)), 0, reported.report))
		if _, v := reported.last(); real != 51*time.Millisecond || v.Wait.Truncate(time.Millisecond) != 459*time.Millisecond {
			t.Errorf("a call has waited for %v, and the last verdict is %v; want 51ms and 459ms", real, v)
		}
	})
}
