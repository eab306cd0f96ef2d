//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
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

// clientsOf returns a client of each server.
func clientsOf(t *testing.T, servers []*redistest.Server) (clients []*redis.Client) {
	for _, s := range servers {
		clients = append(clients, s.Client(t))
	}
	return clients
}

// isMaster reports whether a server is a master that takes writes.
func isMaster(t *testing.T, c *redis.Client) (bool, error) {
	role, err := c.Do(t.Context(), "ROLE").Slice()
	if err != nil || role[0] != "master" {
		return false, err
	}
	info, err := c.Info(t.Context(), "cluster").Result()
	if err == nil && strings.Contains(info, "cluster_enabled:1") {
		info, err = c.ClusterInfo(t.Context()).Result()
		return strings.Contains(info, "cluster_state:ok"), err
	}
	return err == nil, err
}

// promoted waits until one of the servers is a master that takes writes, and returns the time.
func promoted(t *testing.T, servers ...*redistest.Server) time.Time {
	t.Helper()
	clients := clientsOf(t, servers)
	eventually(t, "a replica is promoted", func() bool {
		return slices.ContainsFunc(clients, func(c *redis.Client) bool { is, _ := isMaster(t, c); return is })
	})
	return time.Now()
}

// recovers waits until the fleet has its rate again, which takes less than 10 s. before is the
// fleet's earlier rate on this machine, which may be busy.
func (f *fleet) recovers(promotion time.Time, before float64) {
	f.t.Helper()
	after := -time.Second
	eventually(f.t, "the rate is back", func() bool {
		after = recovery(times(f.api.Arrivals()), promotion, time.Second, min(0.95*f.limits[0].LeakRate, 0.7*before))
		return after >= 0
	})
	f.t.Logf("of the rate of %v/s %.0f/s were used before, and the rate was back %v after the promotion", f.limits[0].LeakRate, before, after)
	require.Less(f.t, after, 10*time.Second)
}

// takenOver kills the master, and checks that the rate is back once a replica has taken over. The
// last charges may not have reached it.
func (f *fleet) takenOver(before float64, d dice, master *redistest.Server, replicas ...*redistest.Server) {
	f.t.Helper()
	f.run(d.between(0, 200*time.Millisecond))
	master.Kill(f.t)
	killed := time.Now()
	at := promoted(f.t, replicas...)
	f.t.Logf("promoted %v after the master was killed", at.Sub(killed).Round(time.Millisecond))
	f.recovers(at, before)
	f.check(forgotten)
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
	// Its rate is back after a replica has taken over.
	t.Run("AReplicaTakesOver", func(t *testing.T) {
		f, before := newSteady(t, client)
		master := c.Owner(t, f.members[0].store.Key(f.key))
		f.takenOver(before, d, master, c.Replica(t, master))
	})
}

// Sentinels promote a replica of a killed master, and the rate is back.
func TestSentinel_RateIsBackAfterPromotion(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	f, before := newSteady(t, func() redis.UniversalClient { return s.Client(t) })
	f.takenOver(before, newDice(t), s.Servers[0], s.Servers[1:]...)
}

// A cluster's master hangs, and its replica is promoted. Each process goes on with the replica once
// its client has given the master up, and each reports that the outage is over.
func TestCluster_MasterHangsAndReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := redistest.StartCluster(t)
	var clients []*redis.ClusterClient
	f, before := newSteady(t, func() redis.UniversalClient {
		client := c.Client(t, func(o *redis.ClusterOptions) {
			o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 500*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
		})
		clients = append(clients, client)
		return client
	})
	key := f.members[0].store.Key(f.key)
	master := c.Owner(t, key)
	replica := c.Replica(t, master)
	for _, client := range clients {
		eventually(t, "the client knows the replica", func() bool {
			client.ReloadState(t.Context())
			known, err := client.SlaveForKey(t.Context(), key)
			return err == nil && known.Options().Addr == replica.Addr()
		})
	}
	f.run(d.between(0, 200*time.Millisecond))
	master.Stop(t)
	for _, m := range f.members {
		eventually(t, "the worker finds its store away", func() bool { n, _ := m.failed(); return n > 0 })
	}
	at := promoted(t, replica)
	for i, m := range f.members {
		goesOn(t, &m.calls, 1)
		t.Logf("worker %d goes on %v after the promotion", i, time.Since(at).Round(time.Millisecond))
	}
	eventually(t, "each report of an outage is followed by one of its end", func() bool {
		return f.count(store.EventDown) == f.count(store.EventUp)
	})
	for i, m := range f.members {
		eventually(t, "no server is away", func() bool { return m.store.Stats().Outages == nil })
		if m.store.Stats().Repeats == 0 {
			t.Errorf("worker %d sent nothing again", i)
		}
	}
	f.recovers(at, before)
	master.Cont(t)
	// The last charges may not have reached the replica.
	f.check(forgotten)
}

// The test has sentinels promote a replica while the master is well. Until the old master
// is demoted, both masters admit. If a master needs one replica of two to write, only the master
// that the other replica follows admits.
func TestFailover_PlannedCostsWhatBothMastersAdmit(t *testing.T) {
	t.Parallel()
	for _, least := range []string{"0", "1"} {
		t.Run("min-replicas-to-write "+least, func(t *testing.T) {
			d := newDice(t)
			s := redistest.StartSentinel(t)
			for _, server := range s.Servers {
				server.Do(t, "CONFIG", "SET", "min-replicas-to-write", least)
			}
			f := newFleet(t, leaky, window)
			for _, server := range s.Servers { // each server that is a master is used: both, while both are masters
				f.addSome(2, func() redis.UniversalClient { return server.Client(t) }, role{})
			}
			f.goesOn(20)
			f.run(d.between(0, 500*time.Millisecond))

			servers := clientsOf(t, s.Servers) // the demoted server ends its connections
			begin := time.Now()
			failOver(t, s)
			eventually(t, "only one is a master", func() bool {
				n := 0
				for _, c := range servers {
					is, err := isMaster(t, c)
					if err != nil {
						return false
					}
					if is {
						n++
					}
				}
				return n == 1
			})
			overlap := time.Since(begin)
			t.Logf("the old master was demoted %v after the failover began", overlap.Round(time.Millisecond))
			f.goesOn(50)
			// On a busy machine the sentinels may find a master down, and promote again.
			epoch, err := strconv.ParseFloat(fmt.Sprint(s.Sentinels[0].Do(t, "SENTINEL", "MASTER", "master").(map[any]any)["config-epoch"]), 64)
			require.NoError(t, err)
			f.check(func(p promise) float64 { // each master keeps a window for itself
				c := max(1, epoch) * forgotten(p)
				if least == "0" {
					c += leaked(overlap)(p)
				}
				return c
			})
		})
	}
}

// failOver makes the sentinels promote a replica, and waits until they have. On a busy machine
// they may give up, or promote the first master again: then failOver asks them again after their
// own timeout.
func failOver(t *testing.T, s *redistest.Sentinel) {
	t.Helper()
	const patience = 15 * time.Second // longer than the sentinels' own timeout
	sentinel := s.Sentinels[0].Client(t)
	replicas := clientsOf(t, s.Servers[1:])
	var asked time.Time
	eventually(t, "a replica is promoted", func() bool {
		if time.Since(asked) > patience {
			asked = time.Now()
			_ = sentinel.Do(t.Context(), "SENTINEL", "FAILOVER", "master").Err() // a failover may be under way
		}
		return slices.ContainsFunc(replicas, func(c *redis.Client) bool { is, _ := isMaster(t, c); return is })
	})
}
