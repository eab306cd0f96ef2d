package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// arrival is a call that comes whether or not earlier ones were answered.
type arrival struct {
	at, within, took time.Duration // within 0: its ctx has no deadline
	cost             outbound.Cost
}

// arrivals are calls at random times, 15 per second on an average.
func arrivals(seed uint64, n int, mixed bool) (all []arrival) {
	rnd := rand.New(rand.NewPCG(seed, 18))
	at := time.Duration(0)
	for range n {
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

// outcome is what has become, or would have, of a call.
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

// run lets the calls come, and calls call in a goroutine for each.
func run(all []arrival, call func(ctx context.Context, i int)) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, a := range all {
		time.Sleep(a.at - time.Since(begin))
		wg.Go(func() {
			ctx := context.Background()
			if a.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.within)
				defer cancel()
			}
			call(ctx, i)
		})
		synctest.Wait() // so that calls come in their order
	}
	wg.Wait()
}

// number is the key of a call's number in its ctx.
type number struct{}

// A shadow reports for each call what the queue does with it, except for rounding, which
// is a nanosecond a call.
func TestShadow_VerdictIsWhatTheQueueDoes(t *testing.T) {
	for i, c := range []struct {
		limits []outbound.Limit
		mixed  bool // costs of 1 to 3, and deadlines
		wait   time.Duration
		differ int
	}{
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 5 * time.Second, 0},
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 0, 0},
		{[]outbound.Limit{outbound.PerSecond(10)}, false, 1, 0},
		{[]outbound.Limit{{Capacity: 5, LeakRate: 10}}, true, 5 * time.Second, 0},
		{[]outbound.Limit{outbound.PerSecond(12).Burst(3), outbound.PerMinute(500).Of(0, "minute")}, true, 5 * time.Second, 0},
		{[]outbound.Limit{outbound.Window(40, 4*time.Second)}, false, 0, 0},
		{[]outbound.Limit{outbound.Window(40, 4*time.Second)}, false, 5 * time.Second, 0},
	} {
		all := arrivals(uint64(i), 400, c.mixed)
		for _, shared := range []bool{false, true} {
			bucket := func() *outbound.Bucket {
				if shared {
					return outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", c.limits...))
				}
				return outbound.Must(outbound.NewBucket("key", c.limits...))
			}
			enforced, told := make([]outcome, len(all)), make([]outcome, len(all))
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(bucket(), queue.Config{MaxWait: c.wait})
				run(all, func(ctx context.Context, i int) {
					came := time.Now()
					p, err := q.Acquire(ctx, all[i].cost)
					enforced[i] = outcomeOf(time.Since(came), err)
					time.Sleep(all[i].took)
					p.Done()
				})
			})
			synctest.Test(t, func(t *testing.T) {
				s := shadow.New(bucket(), c.wait, func(ctx context.Context, v shadow.Verdict) {
					told[ctx.Value(number{}).(int)] = outcomeOf(v.Wait, v.Err)
				})
				run(all, func(ctx context.Context, i int) {
					came := time.Now()
					p, err := s.Acquire(context.WithValue(ctx, number{}, i), all[i].cost)
					if took := time.Since(came); took != 0 || err != nil {
						t.Errorf("a shadowed call has waited for %v: %v", took, err)
					}
					time.Sleep(all[i].took)
					p.Done()
				})
			})
			differ, waited, refused := 0, 0, 0
			for i := range all {
				e, s := enforced[i], told[i]
				if e.err != "" {
					refused++
				} else if e.wait > 0 {
					waited++
				}
				// A window has 64 parts, and which calls are in one depends on when they were booked.
				near := time.Microsecond
				for _, l := range c.limits {
					_, window := l.Each()
					if l.LeakRate > 0 && l == outbound.Window(l.Capacity, window) {
						near = max(near, window/64)
					}
				}
				if off := e.wait - s.wait; off.Abs() > near || e.err != s.err {
					differ++
					if differ > c.differ {
						t.Errorf("%v, shared %v, MaxWait %v, call %d: told %v, and the queue: %v", c.limits, shared, c.wait, i, s, e)
					}
				}
			}
			if c.wait != 1 && waited < 50 || c.wait > 0 && refused < 30 {
				t.Errorf("%v: %d calls have waited and %d were refused: too few to compare", c.limits, waited, refused)
			}
		}
	}
}

// Two programs make the same calls at the same times, and the queue makes one of them wait nine
// times as long. A shadow sees no difference: it takes calls to be independent.
func TestShadow_VerdictTakesCallsToBeIndependent(t *testing.T) {
	const calls, gap = 10, 50 * time.Millisecond
	independent := func(l outbound.Limiter) (longest time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				came := time.Now()
				p, err := l.Acquire(context.Background(), outbound.Cost{1})
				p.Done()
				mu.Lock()
				defer mu.Unlock()
				if longest = max(longest, time.Since(came)); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(gap)
		}
		wg.Wait()
		return longest
	}
	inTurn := func(l outbound.Limiter) (longest time.Duration) {
		for range calls {
			came := time.Now()
			p, err := l.Acquire(context.Background(), outbound.Cost{1})
			p.Done()
			if longest = max(longest, time.Since(came)); err != nil {
				t.Error(err)
			}
			time.Sleep(gap)
		}
		return longest
	}
	bucket := func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("key", outbound.PerSecond(10))) }
	var traces [2]string
	for i, program := range []func(outbound.Limiter) time.Duration{independent, inTurn} {
		synctest.Test(t, func(t *testing.T) {
			longest, want := program(queue.New(bucket(), queue.Config{})), []time.Duration{459, 51}[i]
			if longest = longest.Truncate(time.Millisecond); longest != want*time.Millisecond {
				t.Errorf("program %d has waited for %v, want %dms", i, longest, want)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			begin := time.Now()
			program(shadow.New(bucket(), 0, func(_ context.Context, v shadow.Verdict) {
				mu.Lock()
				defer mu.Unlock()
				traces[i] += fmt.Sprintln(time.Since(begin), v)
			}))
		})
	}
	if traces[0] != traces[1] {
		t.Errorf("a shadow sees a difference:\n%s\n%s", traces[0], traces[1])
	}
}
