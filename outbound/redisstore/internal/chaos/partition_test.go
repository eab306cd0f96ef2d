//go:build linux

package chaos

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// blackHole is a network that accepts everything and delivers nothing.
var blackHole = redistest.Faults{SwallowRequests: 1, SwallowReplies: 1, Handshakes: true}

// busyTimeout is longer than a round trip on a busy machine. A worker that took a slow
// store for away, while the others did not, would add its share to the rate.
const busyTimeout = 5 * time.Second

// behind returns a client that reaches a server through a proxy only.
func behind(t *testing.T, s *redistest.Server, p *redistest.Proxy) *redis.Client {
	return s.Client(t, func(o *redis.Options) { o.Addr = p.Addr() })
}

// One worker of four does not reach the store. Its calls fail, the others have the
// whole rate, and no limit is exceeded.
func TestPartition_OneProcessFails(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	way := redistest.NewProxy(t, server.Addr())
	f := newFleet(t, leaky, window)
	alone := f.add(behind(t, server, way), role{timeout: 500 * time.Millisecond})
	f.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{})
	f.goesOn(20)
	f.run(d.between(0, 300*time.Millisecond))

	way.Set(blackHole)
	failures, _ := alone.failed() // failures that a busy machine has caused before
	eventually(t, "the worker finds its store away", func() bool { n, _ := alone.failed(); return n > failures })
	before, others := alone.calls.Len(), f.api.Arrivals().Len()
	f.run(d.between(500*time.Millisecond, time.Second))
	require.Equal(t, before, alone.calls.Len(), "a call went without the store")
	eventually(t, "the others go on", func() bool { return f.api.Arrivals().Len() > others })
	_, err := alone.failed()
	t.Log("the worker says:", err)

	way.Set(redistest.Faults{})
	way.Cut() // the client must not wait for swallowed replies
	t.Logf("after the partition its first call went %v later", goesOn(t, &alone.calls, 1).Round(time.Millisecond))
	f.check(nothing)
}

// The same worker with a share of its own. The others do not know of that, so its
// share comes on top while they have the whole rate. When the store is back, the
// worker charges what it has used.
func TestPartition_OneProcessUsesItsShare(t *testing.T) {
	t.Parallel()
	const share = 0.25
	server := redistest.Start(t)
	way := redistest.NewProxy(t, server.Addr())
	f := newFleet(t, outbound.Limit{Capacity: 8, LeakRate: 40})
	var away atomic.Bool
	var cut atomic.Pointer[time.Time] // read later, a stalled machine would have made calls before
	alone := f.add(behind(t, server, way), role{timeout: busyTimeout, wrap: func(s store.Store) store.Store {
		return &fallback.Store{Store: s, Share: share, OnSwitch: func(yes bool, _ error) {
			if now := time.Now(); yes {
				cut.Store(&now)
			}
			away.Store(yes)
		}}
	}})
	f.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{})
	f.goesOn(20)

	way.Set(blackHole)
	eventually(t, "the worker finds its store away", away.Load)
	goesOn(t, &alone.calls, 5)
	eventually(t, "an event reports that the store is away", func() bool { return f.count(store.EventDown) > 0 })
	way.Set(redistest.Faults{})
	way.Cut()
	eventually(t, "the worker is back", func() bool { return !away.Load() })
	apart := time.Since(*cut.Load())
	goesOn(t, &alone.calls, 1)
	f.run(300 * time.Millisecond)
	// The answer that the worker is back by may be to a request of before it had found its store away.
	eventually(t, "an event reports that the store is available", func() bool { return f.count(store.EventUp) > 0 })

	n, err := alone.failed()
	require.Zero(t, n, "with a share nothing fails: %v", err)
	f.stop()
	p := promiseOf(t, f.limits[0])
	f.checkReservations(t, p, 0)
	own := share * p.most(apart)
	t.Logf("it was apart for %v, in which its share is %.1f calls", apart.Round(time.Millisecond), own)
	// After the switch the worker may use the store's tickets for a while.
	f.checkCalls(f.api.Arrivals(), p, own+leaked(replyUse)(p))
}
