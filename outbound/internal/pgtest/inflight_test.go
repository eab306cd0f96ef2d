package pgtest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
)

// Three processes have at most six calls in flight. One is cut off, and the others have its slots after
// its lease.
func TestCallsInFlightOfAFleet(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	x := newTables(t, theServer(t))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var inFlight, most atomic.Int64
	var lines [3]*proxy
	for i := range lines {
		lines[i] = newProxy(t, x.server)
		b, err := outbound.NewSharedBucket(x.over(lines[i].in(x.server).open(t, "", nil)), "erp", outbound.InFlight(slots).Lease(lease))
		require.NoError(t, err)
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					p, err := b.Acquire(ctx, outbound.Cost{1})
					if err != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					for sum, old := inFlight.Add(1), most.Load(); sum > old && !most.CompareAndSwap(old, sum); old = most.Load() {
					}
					time.Sleep(30 * time.Millisecond)
					inFlight.Add(-1)
					p.Done()
				}
			})
		}
	}
	time.Sleep(time.Second)
	lines[2].set(faults{hang: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	require.Eventually(t, func() bool { return inFlight.Load() == slots }, time.Minute, time.Millisecond, "the slots of the process that was cut off")
	require.LessOrEqual(t, most.Load(), int64(slots))
}
