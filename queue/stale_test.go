package queue

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// generous is a store that books further ahead than the booking asks, as a store does for a
// worker that catches up, and then fails at once.
type generous struct {
	store.Store
	fails atomic.Bool
	trips atomic.Int64
}

func (g *generous) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if n := g.trips.Add(1); g.fails.Load() && n < 5000 {
		return store.Reply{}, errAway
	}
	op.Horizon = 100 * ms
	return g.Store.Update(ctx, key, op)
}

// A place that was too old to use stayed behind one that was not, and the queue asked the
// store without a pause until that one was due.
func TestAStoreThatFailsAtOnceIsNotAskedWithoutAPause(t *testing.T) {
	for after := ms; after < 60*ms; after += ms {
		synctest.Test(t, func(t *testing.T) {
			g := &generous{Store: store.NewMemory()}
			q := New(shared(t, g, outbound.Limit{Capacity: 1, LeakRate: 500}), Config{})
			went, failed := 0, 0
			done := make(chan error, 400)
			for range 400 {
				go func() {
					_, err := q.Acquire(bg, outbound.Cost{1})
					done <- err
				}()
			}
			time.Sleep(after)
			g.fails.Store(true)
			pass(time.Second)
			for range 400 {
				if err := <-done; err == nil {
					went++
				} else {
					failed++
				}
			}
			if n := g.trips.Load(); n > 100 {
				t.Errorf("%d went, %d failed, %d trips", went, failed, n)
			}
		})
	}
}
