package queue

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Under the race detector, timers of no time in several goroutines of a bubble crash the
// program.
func TestQueue_TimersOfOneInstantDoNotCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := outbound.Limit{Capacity: 1e6, LeakRate: 1e6}
		var wg sync.WaitGroup
		for range 8 {
			q := New(shared(t, store.NewMemory(), limit), Config{})
			wg.Go(func() {
				for range 1000 {
					if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}
