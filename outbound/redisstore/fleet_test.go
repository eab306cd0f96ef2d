package redisstore

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Three processes have at most six calls in flight on a server. One is cut off, and the others have
// its slots after its lease.
func TestStore_InFlightOfAProcessThatIsCutOff(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	server := redistest.Start(t)
	var lines [3]*redistest.Proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = redistest.NewProxy(t, server.Addr())
		stores = append(stores, open(t, lines[i].Addr(), Config{Timeout: time.Second}))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.Full(t)
	lines[2].Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	fleet.Full(t)
	fleet.Check(t)
}

// The server loses all data: the processes report what they hold, and there are never more calls.
func TestStore_InFlightAfterDataLoss(t *testing.T) {
	const slots, lease = 6, 6 * time.Second // nothing is granted for a third of it, and each reports within a sixth
	server := redistest.Start(t)
	var stores []store.Store
	for range 3 {
		stores = append(stores, open(t, server.Addr(), Config{}))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.AllGoOn(t, 10)
	require.NoError(t, server.Client(t).FlushAll(context.Background()).Err())
	fleet.AllGoOn(t, 40)
	fleet.Check(t)
}

// Old and new processes run next to each other, in long runs for a minute.
func TestStore_RolloutOfLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	f := &rollouttest.Fleet{For: 2 * time.Second, Tenants: 100, Open: func(t testing.TB) store.Store {
		return open(t, server.Addr(), Config{Timeout: time.Minute})
	}}
	if os.Getenv("DRIPFEED_LONG") != "" {
		f.For, f.Tenants = time.Minute, 1_000
	}
	f.Test(t)
}

// Three processes change the limits of a key between each other's calls.
func TestStore_ChangesOfLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	n := 100
	if os.Getenv("DRIPFEED_LONG") != "" {
		n = 3_000
	}
	rdb := server.Client(t)
	f := &rollouttest.Fleet{Open: func(testing.TB) store.Store { return New(rdb, Config{Timeout: time.Minute}) }}
	f.PlayFor(t, n)
}
