//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// steady and steadyTolerance are a fleet's limit and its queues' tolerance where a
// test measures the rate. A busy machine makes calls late, and a queue does not make
// up for late calls.
var steady = outbound.Limit{Capacity: 4, LeakRate: 200}

const steadyTolerance = 50 * time.Millisecond

// newSteady starts a fleet of four, and returns its rate before anything happens.
func newSteady(t *testing.T, client func() redis.UniversalClient) (*fleet, float64) {
	t.Helper()
	f := newFleet(t, steady)
	f.tolerance = steadyTolerance
	f.addSome(4, client, role{})
	f.goesOn(20)
	n, from := f.api.Arrivals().Len(), time.Now()
	f.run(time.Second)
	return f, float64(f.api.Arrivals().Len()-n) / time.Since(from).Seconds()
}

// promoted waits until one of the servers is a master that takes writes. It returns
// that server and the time.
func promoted(t *testing.T, servers ...*redistest.Server) (*redistest.Server, time.Time) {
	t.Helper()
	var clients []*redis.Client
	for _, s := range servers {
		clients = append(clients, s.Client(t))
	}
	var found int
	eventually(t, "a replica is promoted", func() bool {
		for i, c := range clients {
			role, err := c.Do(t.Context(), "ROLE").Slice()
			if err != nil || role[0] != "master" {
				continue
			}
			info, err := c.Info(t.Context(), "cluster").Result()
			if err != nil {
				continue
			}
			if strings.Contains(info, "cluster_enabled:1") {
				state, err := c.ClusterInfo(t.Context()).Result()
				if err != nil || !strings.Contains(state, "cluster_state:ok") {
					continue
				}
			}
			found = i
			return true
		}
		return false
	})
	return servers[found], time.Now()
}

// recovers lets the fleet work on, and reports how long after a promotion it had its
// rate again. It fails the test if that never happens. before is the fleet's earlier
// rate on this machine, which may be busy.
func (f *fleet) recovers(promotion time.Time, before float64) {
	f.t.Helper()
	const window = time.Second
	after := func(rate float64) time.Duration {
		return recovery(times(f.api.Arrivals()), promotion, window, rate)
	}
	f.run(time.Until(promotion.Add(2 * window)))
	full := "not within 2 s"
	if d := after(0.95 * f.limits[0].LeakRate); d >= 0 {
		full = d.Round(time.Millisecond).String() + " after the promotion"
	}
	calls := times(f.api.Arrivals())
	first, _ := slices.BinarySearchFunc(calls, promotion, time.Time.Compare)
	f.t.Logf("the first call after the promotion went %v later", calls[first].Sub(promotion).Round(time.Millisecond))
	f.t.Logf("of the rate of %v/s %.1f %% were used before; 95 %% are used again: %s", f.limits[0].LeakRate, 100*before/f.limits[0].LeakRate, full)
	want := min(0.95*f.limits[0].LeakRate, 0.7*before)
	eventually(f.t, "the rate is back", func() bool { return after(want) >= 0 })
	require.Less(f.t, after(want), 10*time.Second)
}

// Two of a cluster's three masters hang, and then one is killed.
func TestCluster_GoesOnAfterFaults(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := redistest.StartCluster(t)
	client := func() redis.UniversalClient { return c.Client(t) }

	// An orderly promotion loses no grant.
	t.Run("SlotsAreKept", func(t *testing.T) {
		f := rollouttest.StartCallers(t, slots, 3*lease, processesOf(3, client))
		f.AllGoOn(t, 10)
		key := redisstore.New(nil, redisstore.Config{}).Key(f.Key())
		replica := c.Replica(t, c.Owner(t, key))
		c.Failover(t, replica)
		require.Equal(t, replica, c.Owner(t, key))
		f.AllAsk(t)
		f.AllGoOn(t, 10)
		f.Check(t)
	})

	// No majority is left, so there is no store on any node until there is a majority
	// again.
	whole := t.Run("AMinorityIsNoStore", func(t *testing.T) {
		f := newFleet(t, leaky, window)
		f.addSome(3, client, role{})
		f.goesOn(20)
		key := f.members[0].store.Key(f.key)
		lone := c.Owner(t, key)
		var standing []*redistest.Server
		for range 2 {
			m := c.Master(t, append(standing, lone)...)
			m.Stop(t)
			standing = append(standing, m)
		}
		eventually(t, "the last master says that the cluster is down", func() bool {
			return strings.Contains(fmt.Sprint(lone.Do(t, "CLUSTER", "INFO")), "cluster_state:fail")
		})
		for _, m := range f.members {
			before, _ := m.failed() // a busy machine may have caused some
			eventually(t, "the worker finds its store away", func() bool { n, _ := m.failed(); return n > before+6 })
		}
		n := f.api.Arrivals().Len()
		f.run(d.between(300*time.Millisecond, 600*time.Millisecond))
		require.Equal(t, n, f.api.Arrivals().Len(), "calls went without a store")
		_, err := f.members[0].failed()
		t.Log("a worker says:", err)
		for _, m := range standing {
			m.Cont(t)
		}
		t.Logf("after the masters came back the first call went %v later", f.goesOn(1).Round(time.Millisecond))
		f.check(nothing)
		c.Ready(t)
	})

	if !whole {
		return
	}
	t.Run("AReplicaTakesOver", func(t *testing.T) {
		f, before := newSteady(t, client)
		key := f.members[0].store.Key(f.key)
		master := c.Owner(t, key)
		replica := c.Replica(t, master)
		f.run(d.between(0, 200*time.Millisecond))
		master.Kill(t)
		killed := time.Now()
		_, at := promoted(t, replica)
		t.Logf("promoted %v after the master was killed", at.Sub(killed).Round(time.Millisecond))
		f.recovers(at, before)
		// The last charges may not have reached the replica.
		f.check(forgotten)
	})
}

func TestSentinel_RateIsBackAfterPromotion(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	s := redistest.StartSentinel(t)
	f, before := newSteady(t, func() redis.UniversalClient { return s.Client(t) })
	f.run(d.between(0, 200*time.Millisecond))
	s.Servers[0].Kill(t)
	killed := time.Now()
	_, at := promoted(t, s.Servers[1:]...)
	t.Logf("promoted %v after the master was killed", at.Sub(killed).Round(time.Millisecond))
	named := s.Master(t)
	t.Logf("all sentinels name %s as the master %v later", named.Addr(), time.Since(at).Round(time.Millisecond))
	f.recovers(at, before)
	f.check(forgotten)
}
