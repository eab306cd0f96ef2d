package outboundtest

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Load is a list of calls, and the callers that make them as fast as a limiter lets them. Each
// caller takes a call from the list, waits until it is admitted, makes it, and takes the next.
//
//	func TestNightlyExportIsDoneInAnHour(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			load := outboundtest.Load{Calls: 30_000, Callers: 8, Latency: 150 * time.Millisecond}
//			r := load.Run(t.Context(), newLimiter()) // yours
//			if r.Failed > 0 || r.Took > time.Hour {
//				t.Errorf("%d calls failed, and it took %v", r.Failed, r.Took)
//			}
//		})
//	}
type Load struct {
	Calls   int           // on the list
	Callers int           // of each limiter; 0 is one
	Latency time.Duration // how long a call takes once it is admitted
	Cost    outbound.Cost // of each call; the zero Cost is one unit
}

// LoadReport is the result of a [Load].
type LoadReport struct {
	// Took is the time from the first call to the end of the last.
	Took time.Duration
	// Waits are how long the admitted calls waited, the shortest first.
	Waits []time.Duration
	// Departures are the admitted calls, each with the first number of its cost.
	Departures History
	// Refused is how often a limiter has refused a call that its caller then repeated.
	Refused int
	// Failed is how many calls their callers have given up, and Err the first reason.
	Failed int
	Err    error
}

// Run makes the calls, and returns when all of them have ended. Every limiter has callers of its
// own, and all callers take from one list: several limiters are the workers of a fleet. In a
// testing/synctest bubble that has the limiters, too, Run takes no time, however long the calls
// wait.
//
// A caller repeats a refused call after the RetryAfter of its [outbound.ThrottledError]. It gives
// up a call that is refused without one, that gets another error, or whose ctx has ended. So the
// calls that are left on the list when ctx ends count as failed.
//
// Run panics without limiters, or if the load has a negative number.
func (l Load) Run(ctx context.Context, limiters ...outbound.Limiter) *LoadReport {
	need(len(limiters) > 0, "a load on no limiter")
	need(l.Calls >= 0 && l.Callers >= 0, "%d calls of %d callers: must be at least 0", l.Calls, l.Callers)
	need(l.Latency >= 0, "a latency of %v: must be at least 0", l.Latency)
	if l.Cost == (outbound.Cost{}) {
		l.Cost = outbound.Cost{1}
	}
	run := &loadRun{Load: l, report: &LoadReport{}}
	start := time.Now()
	var all sync.WaitGroup
	for _, limiter := range limiters {
		for range max(1, l.Callers) {
			all.Go(func() {
				for run.take() {
					run.call(ctx, limiter)
				}
			})
		}
	}
	all.Wait()
	run.report.Took = time.Since(start)
	slices.Sort(run.report.Waits)
	return run.report
}

// Wait returns how long a share of the admitted calls waited at most: Wait(0.5) is the median and
// Wait(1) the longest wait. It is 0 if none was admitted. Wait panics unless the share is 0 to 1.
func (r *LoadReport) Wait(share float64) time.Duration {
	need(share >= 0 && share <= 1, "a share of %g: must be 0 to 1", share)
	if len(r.Waits) == 0 {
		return 0
	}
	return r.Waits[max(0, int(math.Ceil(share*float64(len(r.Waits))))-1)]
}

// loadRun is one run of a load.
type loadRun struct {
	Load
	mu     sync.Mutex // protects the fields below
	taken  int        // from the list
	report *LoadReport
}

// take takes a call from the list, if one is left.
func (r *loadRun) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken == r.Calls {
		return false
	}
	r.taken++
	return true
}

// call repeats a call until it is admitted or must be given up.
func (r *loadRun) call(ctx context.Context, limiter outbound.Limiter) {
	began := time.Now()
	for {
		permit, err := limiter.Acquire(ctx, r.Cost)
		if err == nil {
			now := time.Now()
			r.mu.Lock()
			r.report.Waits = append(r.report.Waits, now.Sub(began))
			r.mu.Unlock()
			r.report.Departures.Add(now, r.Cost[0])
			time.Sleep(r.Latency) // to its end, as a call that cannot be taken back
			permit.Done()
			return
		}
		var full *outbound.ThrottledError
		again := errors.As(err, &full) && full.RetryAfter > 0 && ctx.Err() == nil
		r.mu.Lock()
		if again {
			r.report.Refused++
		} else {
			r.report.Failed++
			if r.report.Err == nil {
				r.report.Err = err
			}
		}
		r.mu.Unlock()
		if !again {
			return
		}
		select {
		case <-time.After(full.RetryAfter):
		case <-ctx.Done(): // the next Acquire returns that
		}
	}
}
