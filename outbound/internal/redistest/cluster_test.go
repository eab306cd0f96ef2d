package redistest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A slot moves key by key. Meanwhile the master that had it serves the keys that it still has, and
// the other one the rest.
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
	require.Equal(t, 1, m.Move(t, 1))
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
	one := c.Owner(t, rand.Text())
	from := []*Server{one, c.Master(t, one)}
	tags := map[int]string{}
	for len(tags) < 2 {
		tag := "{" + rand.Text() + "}"
		if i := slices.Index(from, c.Owner(t, tag)); i >= 0 && tags[i] == "" {
			tags[i] = tag
			for k := range keys {
				require.NoError(t, client.Set(t.Context(), fmt.Sprint(tag, k), k, 0).Err())
			}
		}
	}
	var wg sync.WaitGroup
	for i, tag := range tags {
		wg.Go(func() {
			m := c.Migrate(t, tag, from[1-i])
			for range keys {
				m.Move(t, 1)
			}
			m.Finish(t)
		})
	}
	wg.Wait()
	for i, tag := range tags {
		require.Equal(t, from[1-i], c.Owner(t, tag))
	}
}

// The replica of a killed master has its slots and data, and the restarted master is its replica.
// This test breaks the shared cluster and mends it: a cluster of its own would take seconds.
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
