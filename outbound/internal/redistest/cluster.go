package redistest

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	masters  = 3
	allSlots = 16384
)

// Cluster is a Redis Cluster of three masters with a replica each. A test can kill, stop
// and restart its nodes like any [Server].
type Cluster struct {
	Nodes []*Server // which of them are masters may change

	ids []string // the ids by which the nodes know each other, in the same order

	// moves is held while a node sends keys to another one, and while a slot changes its owner.
	// A node answers no client while it sends keys, so two nodes that send keys to each other
	// would wait for each other. Two slots that change their owners at the same time may lose one.
	moves sync.Mutex
}

// StartCluster starts a cluster of the test's own. That takes Redis about 2 s. The test is
// skipped where there is no redis-server.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	b, err := find()
	if err != nil {
		lack(t, err.Error())
	}
	announce(t, b.String())
	c, err := newCluster(b)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(c.end)
	return c
}

var sharedCluster = sync.OnceValues(func() (*Cluster, error) {
	b, err := find()
	if err != nil {
		return nil, err
	}
	c, err := newCluster(b)
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		n.shared = true
	}
	return c, nil
})

// SharedCluster returns the one cluster that serves all tests of a binary, as [Shared] does with
// one server. A test may move its slots and promote its replicas while other tests use it, but
// cannot kill or stop its nodes.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	b, err := find()
	if err != nil {
		lack(t, err.Error())
	}
	announce(t, b.String())
	c, err := sharedCluster()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return c
}

func newCluster(b program) (*Cluster, error) {
	c := &Cluster{Nodes: make([]*Server, 2*masters), ids: make([]string, 2*masters)}
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i := range c.Nodes {
		wg.Go(func() {
			c.Nodes[i], errs[i] = run(config{program: b, args: []string{
				"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
				// At the defaults it takes seconds until the master sees a replica.
				"--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0",
			}})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			c.end()
			return nil, err
		}
	}
	if err := c.join(); err != nil {
		c.end()
		return nil, fmt.Errorf("making a cluster: %w", err)
	}
	return c, nil
}

// join makes a cluster of the nodes: the first three are its masters.
func (c *Cluster) join() error {
	for i, n := range c.Nodes {
		id, err := n.do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		c.ids[i] = fmt.Sprint(id)
		if i >= masters {
			continue
		}
		slots := []any{"CLUSTER", "ADDSLOTS"}
		for slot := allSlots * i / masters; slot < allSlots*(i+1)/masters; slot++ {
			slots = append(slots, slot)
		}
		if _, err := n.do(slots...); err != nil {
			return err
		}
		// Without epochs of their own the nodes would first have to agree on them.
		if _, err := n.do("CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes[1:] {
		if _, err := c.Nodes[0].do("CLUSTER", "MEET", "127.0.0.1", n.Port()); err != nil {
			return err
		}
	}
	for i, n := range c.Nodes[masters:] {
		if err := poll(func() error { // until the replica knows its master
			_, err := n.do("CLUSTER", "REPLICATE", c.ids[i])
			return err
		}); err != nil {
			return err
		}
	}
	return poll(c.whole)
}

// whole reports whether all nodes agree that every slot has a master and a replica, and
// whether the replicas have all data of the masters. On a busy machine the cluster may
// promote a replica meanwhile.
func (c *Cluster) whole() error {
	if err := c.agree(); err != nil {
		return err
	}
	view, err := c.Nodes[0].do("CLUSTER", "SLOTS")
	if err != nil {
		return err
	}
	ranges, _ := view.([]any)
	for _, r := range ranges {
		if fields, _ := r.([]any); len(fields) != 4 { // from, to, master, replica
			return fmt.Errorf("slots without a replica: %v", r)
		}
	}
	for _, n := range c.Nodes {
		is, err := n.self()
		if err != nil {
			return err
		}
		if is.master {
			if err := online(n, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) end() {
	for _, n := range c.Nodes {
		if n != nil {
			n.end()
		}
	}
}

// agree reports whether every live node finds the cluster in order, and all name the same
// masters and replicas.
func (c *Cluster) agree() error {
	var first any
	for _, n := range c.Nodes {
		if !n.alive() {
			continue
		}
		info, err := n.do("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if !strings.Contains(fmt.Sprint(info), "cluster_state:ok") {
			return fmt.Errorf("to the node on port %d the cluster is not ok", n.Port())
		}
		view, err := n.do("CLUSTER", "SLOTS")
		if err != nil {
			return err
		}
		if first == nil {
			first = view
		}
		if !reflect.DeepEqual(view, first) {
			return fmt.Errorf("the nodes do not agree: %v, %v", first, view)
		}
	}
	return nil
}

// self is what a node says about itself.
type self struct {
	master bool
	of     string // the id of a replica's master
	epoch  int64
	slots  []string // "5" or "0-5460"
}

func (s *Server) self() (self, error) {
	reply, err := s.do("CLUSTER", "NODES")
	if err != nil {
		return self{}, err
	}
	for line := range strings.Lines(fmt.Sprint(reply)) {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.Contains(f[2], "myself") {
			continue
		}
		epoch, err := strconv.ParseInt(f[6], 10, 64)
		if err != nil {
			return self{}, fmt.Errorf("%q: %w", line, err)
		}
		return self{master: strings.Contains(f[2], "master"), of: f[3], epoch: epoch, slots: f[8:]}, nil
	}
	return self{}, fmt.Errorf("the node on port %d does not know itself: %q", s.Port(), reply)
}

// has reports whether a node has a slot.
func (s self) has(slot int) bool {
	for _, r := range s.slots {
		from, to, isRange := strings.Cut(r, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		// A node also writes slots on the move in another form, and lists them here, too.
		if err == nil && err2 == nil && first <= slot && slot <= last {
			return true
		}
	}
	return false
}

// Client returns a client of the cluster, which is closed when the test ends. Its options
// are go-redis' defaults, unless the functions change them.
func (c *Cluster) Client(t testing.TB, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{}
	for _, n := range c.Nodes {
		o.Addrs = append(o.Addrs, n.Addr())
	}
	for _, f := range change {
		f(o)
	}
	client := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// live returns a node that answers.
func (c *Cluster) live() (*Server, error) {
	for _, n := range c.Nodes {
		if n.alive() {
			return n, nil
		}
	}
	return nil, fmt.Errorf("of %d nodes none is alive", len(c.Nodes))
}
