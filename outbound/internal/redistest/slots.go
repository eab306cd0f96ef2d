package redistest

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Slot returns the slot of a key.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	n, err := c.live()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	slot, ok := n.Do(t, "CLUSTER", "KEYSLOT", key).(int64)
	if !ok {
		t.Fatalf("redistest: no slot of %q", key)
	}
	return int(slot)
}

// owner returns the live master that has a slot. If two masters claim it, owner
// returns the one with the later epoch.
func (c *Cluster) owner(slot int) (*Server, error) {
	var found *Server
	var epoch int64 = -1
	for _, n := range c.Nodes {
		if !n.alive() {
			continue
		}
		me, err := n.self()
		if err != nil {
			return nil, err
		}
		if me.master && me.has(slot) && me.epoch > epoch {
			found, epoch = n, me.epoch
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no live master has slot %d", slot)
	}
	return found, nil
}

// Owner returns the master that has the slot of a key. If its master was killed or
// stopped, Owner waits until a replica has taken over.
func (c *Cluster) Owner(t testing.TB, key string) *Server {
	t.Helper()
	slot := c.Slot(t, key)
	var found *Server
	if err := poll(func() (err error) {
		found, err = c.owner(slot)
		return err
	}); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return found
}

// Master returns a live master other than the given ones, so that a test can move a slot to it.
func (c *Cluster) Master(t testing.TB, others ...*Server) *Server {
	t.Helper()
	for _, n := range c.Nodes {
		if !n.alive() || slices.Contains(others, n) {
			continue
		}
		if me, err := n.self(); err == nil && me.master && len(me.slots) > 0 {
			return n
		}
	}
	t.Fatal("redistest: there is no other live master")
	return nil
}

// Replica returns the live replica of a master, which may be dead.
func (c *Cluster) Replica(t testing.TB, master *Server) *Server {
	t.Helper()
	id := c.ids[slices.Index(c.Nodes, master)]
	for _, n := range c.Nodes {
		if !n.alive() {
			continue
		}
		if me, err := n.self(); err == nil && !me.master && me.of == id {
			return n
		}
	}
	t.Fatalf("redistest: the master on port %d has no live replica", master.Port())
	return nil
}

// Ready waits until all running nodes find the cluster in order and agree on the owner of each
// slot. After a failover, clients then learn of it.
func (c *Cluster) Ready(t testing.TB) {
	t.Helper()
	if err := poll(c.agree); err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// Failover promotes a replica in an orderly way, without loss, and waits until all
// nodes know.
func (c *Cluster) Failover(t testing.TB, replica *Server) {
	t.Helper()
	var asked time.Time
	if err := poll(func() error {
		if time.Since(asked) > 10*time.Second { // a node gives up after 5 s, which happens on a busy machine
			asked = time.Now()
			_, _ = replica.do("CLUSTER", "FAILOVER") // the replica's own state shows the outcome
		}
		me, err := replica.self()
		if err == nil && !me.master {
			err = fmt.Errorf("the replica on port %d was not promoted", replica.Port())
		}
		return err
	}); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	c.Ready(t)
}

// Migration moves one slot from one master to another. While it lasts, From serves
// the keys that it still has, and redirects clients that ask for other keys to To
// with ASK. Neither serves a command with keys on both sides (TRYAGAIN).
type Migration struct {
	Slot     int
	From, To *Server

	cluster *Cluster
}

// Migrate begins to move the slot of a key to another master: To imports, From
// migrates, and no key has moved yet.
func (c *Cluster) Migrate(t testing.TB, key string, to *Server) *Migration {
	t.Helper()
	m := &Migration{Slot: c.Slot(t, key), From: c.Owner(t, key), To: to, cluster: c}
	if m.From == to {
		t.Fatalf("redistest: the slot of %q is at port %d already", key, to.Port())
	}
	m.To.Do(t, "CLUSTER", "SETSLOT", m.Slot, "IMPORTING", c.ids[slices.Index(c.Nodes, m.From)])
	m.From.Do(t, "CLUSTER", "SETSLOT", m.Slot, "MIGRATING", c.ids[slices.Index(c.Nodes, m.To)])
	return m
}

// Move moves up to n keys, and returns how many it has moved.
func (m *Migration) Move(t testing.TB, n int) int {
	t.Helper()
	keys, ok := m.From.Do(t, "CLUSTER", "GETKEYSINSLOT", m.Slot, n).([]any)
	if !ok {
		t.Fatalf("redistest: no list of the keys in slot %d", m.Slot)
	}
	if len(keys) == 0 {
		return 0
	}
	args := []any{"MIGRATE", "127.0.0.1", m.To.Port(), "", 0, patience.Milliseconds(), "KEYS"}
	m.cluster.moves.Lock()
	defer m.cluster.moves.Unlock()
	m.From.Do(t, append(args, keys...)...)
	return len(keys)
}

// Finish moves the keys that are left, gives the slot to To, and sets it on all masters. One
// slot of a cluster changes its owner at a time, so that a slot that moves the other way
// meanwhile keeps its owner.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	for m.Move(t, 100) > 0 {
	}
	id := m.cluster.ids[slices.Index(m.cluster.Nodes, m.To)]
	m.cluster.moves.Lock()
	defer m.cluster.moves.Unlock()
	// The new owner comes first: otherwise no master would have the slot for a moment.
	m.To.Do(t, "CLUSTER", "SETSLOT", m.Slot, "NODE", id)
	m.From.Do(t, "CLUSTER", "SETSLOT", m.Slot, "NODE", id)
	for _, n := range m.cluster.Nodes {
		if n == m.To || n == m.From || !n.alive() {
			continue
		}
		if me, err := n.self(); err == nil && me.master {
			n.Do(t, "CLUSTER", "SETSLOT", m.Slot, "NODE", id)
		}
	}
	m.cluster.Ready(t)
}
