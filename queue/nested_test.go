package queue

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// row admits a call by all of its limiters, the outermost first.
type row []outbound.Limiter

func (r row) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	all := make([]outbound.Permit, 0, len(r))
	for _, l := range r {
		p, err := l.Acquire(ctx, c)
		if err != nil {
			for i := range all {
				all[i].Settle(outbound.Cost{})
				all[i].Done()
			}
			return outbound.Permit{}, err
		}
		all = append(all, p)
	}
	return outbound.NewPermit(ends(all)), nil
}

type ends []outbound.Permit

func (e ends) Settle(outbound.Cost)     {}
func (e ends) Answered(outbound.Answer) {}
func (e ends) Done() {
	for i := range e {
		e[i].Done()
	}
}

// flood sends 1 000 calls at once that take a tenth of a second each. It returns how many
// failed, the most that left within a second, the most in progress together, and how long all
// took.
func flood(l outbound.Limiter) (failed, window, together int, took time.Duration) {
	var mu sync.Mutex
	var left []time.Duration
	var all sync.WaitGroup
	begin, running := time.Now(), 0
	for range 1000 {
		all.Go(func() {
			p, err := l.Acquire(bg, outbound.Cost{1})
			mu.Lock()
			if err != nil {
				failed++
				mu.Unlock()
				return
			}
			left = append(left, time.Since(begin))
			running++
			together = max(together, running)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			if at := time.Since(begin); at > 5*time.Second { // the API stalls from 5 s to 8 s
				time.Sleep(8*time.Second - at)
			}
			mu.Lock()
			running--
			mu.Unlock()
			p.Done()
		})
	}
	all.Wait()
	slices.Sort(left)
	for i, from := 0, 0; i < len(left); i++ {
		for left[i]-left[from] > time.Second {
			from++
		}
		window = max(window, i-from+1)
	}
	return failed, window, together, time.Since(begin)
}

func TestQueue_InFlightQueueGoesAroundTheRate(t *testing.T) {
	rate, inFlight := outbound.PerSecond(50), outbound.InFlight(20)
	of := func(limits ...outbound.Limit) *Queue {
		return New(outbound.Must(outbound.NewBucket("row", limits...)), Config{})
	}
	var one time.Duration
	for _, c := range []struct {
		name    string
		limiter func() outbound.Limiter
		right   bool
	}{
		{"one bucket", func() outbound.Limiter { return of(rate, inFlight) }, true},
		{"at once around the rate", func() outbound.Limiter { return row{of(inFlight), of(rate)} }, true},
		{"one shared bucket", func() outbound.Limiter {
			return New(outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "row", rate, inFlight)), Config{})
		}, true},
		{"the rate around at once", func() outbound.Limiter { return row{of(rate), of(inFlight)} }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			failed, window, together, took := flood(c.limiter())
			t.Logf("%s: %d failed, %d in a second, %d together, %v", c.name, failed, window, together, took)
			if one == 0 {
				one = took
			}
			if failed > 0 || together > 20 || c.right != (window <= 50) || took > one+one/50 {
				t.Errorf("%s: %d of 1000 failed, %d in a second, %d together, %v; in one bucket %v", c.name, failed, window, together, took, one)
			}
		})
	}
}
