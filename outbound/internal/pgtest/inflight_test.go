package pgtest

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Three processes have at most six calls in flight. One is cut off, and the others have its slots after
// its lease.
func TestInFlight_OfAProcessThatIsCutOff(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	x := newTables(t, theServer(t))
	var lines [3]*proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = newProxy(t, x.server)
		stores = append(stores, x.over(lines[i].in(x.server).open(t, "", nil)))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.Full(t)
	lines[2].set(faults{hang: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	fleet.Full(t)
	fleet.Check(t)
}

// The server crashes, and starts again. A store that is durable has lost nothing: there are never more
// calls, and each process goes on.
func TestInFlight_CrashOfTheServer(t *testing.T) {
	x := newTables(t, ownServer(t))
	var stores []store.Store
	for range 3 {
		stores = append(stores, x.store(t, func(c *pgstore.Config) { c.Durable = true }))
	}
	fleet := rollouttest.StartCallers(t, 6, 6*time.Second, stores)
	for range 2 {
		fleet.AllGoOn(t, 10)
		x.kill(syscall.SIGQUIT)
		require.NoError(t, x.start())
	}
	fleet.AllGoOn(t, 10)
	fleet.Check(t)
}
