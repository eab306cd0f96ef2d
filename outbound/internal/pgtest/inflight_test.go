package pgtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Three processes have at most six calls in flight. One is cut off, and the others have its slots after
// its lease.
func TestCallsInFlightOfAFleet(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	x := newTables(t, theServer(t))
	var lines [3]*proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = newProxy(t, x.server)
		stores = append(stores, x.over(lines[i].in(x.server).open(t, "", nil)))
	}
	fleet := rollouttest.StartCallers(t, outbound.InFlight(slots).Lease(lease), stores)
	full := func() bool { now, _ := fleet.InFlight(); return now == slots }
	require.Eventually(t, full, time.Minute, time.Millisecond)
	lines[2].set(faults{hang: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	require.Eventually(t, full, time.Minute, time.Millisecond, "the slots of the process that was cut off")
	_, most := fleet.InFlight()
	require.LessOrEqual(t, most, slots)
}
