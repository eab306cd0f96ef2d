package rollouttest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Callers make calls in several processes that share a limit on calls in flight.
type Callers struct{ inFlight, most, calls atomic.Int64 }

// StartCallers starts a process for each store, each with four callers, until the test ends.
func StartCallers(t testing.TB, limit outbound.Limit, stores []store.Store) *Callers {
	t.Helper()
	f := new(Callers)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	for _, s := range stores {
		b, err := outbound.NewSharedBucket(s, "fleet", limit)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					p, err := b.Acquire(ctx, outbound.Cost{1})
					if err != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					for sum, old := f.inFlight.Add(1), f.most.Load(); sum > old && !f.most.CompareAndSwap(old, sum); old = f.most.Load() {
					}
					time.Sleep(30 * time.Millisecond) // a call
					f.inFlight.Add(-1)
					f.calls.Add(1)
					p.Done()
				}
			})
		}
	}
	return f
}

// InFlight returns how many calls are in flight, and the most that there were.
func (f *Callers) InFlight() (now, most int) { return int(f.inFlight.Load()), int(f.most.Load()) }

// Calls returns how many calls have ended.
func (f *Callers) Calls() int { return int(f.calls.Load()) }
