package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Three processes have at most six calls in flight on a server. One is cut off, and the others have
// its slots after its lease. Then the server loses all data: the processes report what they hold, and
// there are never more calls.
func TestStore_CallsInFlightOfAFleet(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	server := redistest.Start(t)
	var lines [3]*redistest.Proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = redistest.NewProxy(t, server.Addr())
		stores = append(stores, open(t, lines[i].Addr(), Config{Timeout: time.Second}))
	}
	fleet := rollouttest.StartCallers(t, outbound.InFlight(slots).Lease(lease), stores)
	full := func() bool { now, _ := fleet.InFlight(); return now == slots }
	require.Eventually(t, full, time.Minute, time.Millisecond)
	lines[2].Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	require.Eventually(t, full, time.Minute, time.Millisecond, "the slots of the process that was cut off")
	require.NoError(t, server.Client(t).FlushAll(context.Background()).Err())
	before := fleet.Calls()
	require.Eventually(t, func() bool { return fleet.Calls() >= before+100 }, time.Minute, time.Millisecond, "calls go on after the loss")
	_, most := fleet.InFlight()
	require.LessOrEqual(t, most, slots)
}
