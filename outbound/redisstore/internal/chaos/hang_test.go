//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

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
		eventually(t, "the client has heard of the replica", func() bool {
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
	_, at := promoted(t, replica)
	for i, m := range f.members {
		goesOn(t, &m.calls, 1)
		t.Logf("worker %d goes on %v after the promotion", i, time.Since(at).Round(time.Millisecond))
	}
	eventually(t, "whoever was told that a server is away is told that it is back", func() bool {
		return f.heard(store.EventDown) == f.heard(store.EventUp)
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
