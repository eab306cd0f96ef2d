package redistest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCluster_HasThreeMastersWithAReplicaEach(t *testing.T) {
	c := SharedCluster(t)
	client := c.Client(t)
	owners := map[*Server]bool{}
	for range 30 {
		key := rand.Text()
		require.NoError(t, client.Set(t.Context(), key, "v", 0).Err())
		owner := c.Owner(t, key)
		owners[owner] = true
		require.Equal(t, "v", owner.Do(t, "GET", key))
		replica := c.Replica(t, owner)
		require.NoError(t, poll(func() error { return online(owner, 1) }))
		conn := replica.Client(t).Conn()
		require.NoError(t, conn.ReadOnly(t.Context()).Err())
		require.Equal(t, "v", conn.Get(t.Context(), key).Val())
	}
	require.Len(t, owners, masters)
	require.Equal(t, c.Slot(t, "{tag}a"), c.Slot(t, "{tag}b"))
	require.Same(t, c, SharedCluster(t))
}

func TestCluster_SlotMovesStepByStep(t *testing.T) {
	c := SharedCluster(t)
	client := c.Client(t)
	tag := rand.Text()
	key := func(i int) string { return fmt.Sprintf("{%s}%d", tag, i) }
	for i := range 3 {
		require.NoError(t, client.Set(t.Context(), key(i), i, 0).Err())
	}
	from := c.Owner(t, key(0))
	m := c.Migrate(t, key(0), c.Master(t, from))
	require.Equal(t, from, m.From)
	require.Equal(t, 1, m.Move(t, 1))

	// The old master serves the keys that it still has, and the other one the
	// rest.
	asked, plain := 0, from.Client(t)
	for i := range 3 {
		if err := plain.Get(t.Context(), key(i)).Err(); err != nil {
			require.ErrorContains(t, err, "ASK")
			asked++
		}
		require.Equal(t, fmt.Sprint(i), client.Get(t.Context(), key(i)).Val())
	}
	require.Equal(t, 1, asked)
	require.Equal(t, from, c.Owner(t, key(0)))

	m.Finish(t)
	require.Equal(t, m.To, c.Owner(t, key(0)))
	require.ErrorContains(t, plain.Get(t.Context(), key(0)).Err(), "MOVED")
	for i := range 3 {
		require.Equal(t, fmt.Sprint(i), client.Get(t.Context(), key(i)).Val())
	}
}

// Two masters that sent keys to each other at a time would wait for each other.
func TestCluster_SlotsMoveBothWays(t *testing.T) {
	c := SharedCluster(t)
	client := c.Client(t)
	const keys = 200
	tagOf := func(at *Server) string { // with all its keys there
		for {
			tag := "{" + rand.Text() + "}"
			if c.Owner(t, tag) != at {
				continue
			}
			for i := range keys {
				require.NoError(t, client.Set(t.Context(), fmt.Sprint(tag, i), i, 0).Err())
			}
			return tag
		}
	}
	one := c.Owner(t, rand.Text())
	other := c.Master(t, one)
	tags := map[string]*Server{tagOf(one): other, tagOf(other): one}
	var wg sync.WaitGroup
	for tag, to := range tags {
		wg.Go(func() {
			m := c.Migrate(t, tag, to)
			for range keys {
				m.Move(t, 1)
			}
			m.Finish(t)
		})
	}
	wg.Wait()
	for tag, to := range tags {
		require.Equal(t, to, c.Owner(t, tag))
	}
}

// This test breaks the shared cluster and mends it: a cluster of its own would
// take seconds.
func TestCluster_ReplacesAKilledMaster(t *testing.T) {
	c := SharedCluster(t)
	client := c.Client(t)
	key := rand.Text()
	master := c.Owner(t, key)
	replica := c.Replica(t, master)
	require.NoError(t, client.Set(t.Context(), key, "v", 0).Err())
	require.NoError(t, poll(func() error { return online(master, 1) }))

	master.shared = false
	defer func() { master.shared = true }()
	master.Kill(t)
	require.Equal(t, replica, c.Owner(t, key))
	c.Ready(t)
	require.Equal(t, "v", c.Client(t).Get(t.Context(), key).Val())

	master.Restart(t)
	require.NoError(t, poll(func() error {
		me, err := master.self()
		if err == nil && me.master {
			err = errors.New("the old master is no replica")
		}
		return err
	}))
	c.Ready(t)
	require.Equal(t, master, c.Replica(t, replica))
	require.NoError(t, poll(func() error { return online(replica, 1) }))
}
