package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// Three processes have at most six calls in flight on a server. One is cut off, and the others have
// its slots after its lease. Then the server loses all data: those that hold
// slots say so, and there are never more.
func TestStore_CallsInFlightOfAFleet(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var inFlight, most atomic.Int64
	var lines [3]*redistest.Proxy
	for i := range lines {
		lines[i] = redistest.NewProxy(t, server.Addr())
		b, err := outbound.NewSharedBucket(open(t, lines[i].Addr(), Config{Timeout: time.Second}), "erp", outbound.InFlight(slots).Lease(lease))
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
	lines[2].Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	require.Eventually(t, func() bool { return inFlight.Load() == slots }, time.Minute, time.Millisecond, "the slots of the process that was cut off")
	require.NoError(t, server.Client(t).FlushAll(ctx).Err())
	time.Sleep(2 * time.Second)
	require.Eventually(t, func() bool { return inFlight.Load() > 0 }, time.Minute, time.Millisecond, "calls go on after the loss")
	require.LessOrEqual(t, most.Load(), int64(slots))
}
