package redistest

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	sentinels    = 3
	sentinelName = "master"
)

// Sentinel is a master with two replicas, and three sentinels that promote one of
// them when the master has been gone for half a second. A test can kill, stop and
// restart every server of it.
type Sentinel struct {
	Servers   []*Server // the first is the master until another is promoted
	Sentinels []*Server
}

// StartSentinel starts such a set, which takes about 0.3 s. It ends with the
// test. The test is skipped where there is no redis-server.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	b, err := find()
	if err != nil {
		lack(t, err.Error())
	}
	announce(t, b.String())
	fast := []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}
	s := &Sentinel{Servers: []*Server{start(t, config{program: b, args: fast})}}
	master := s.Servers[0]
	follow := append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(master.Port())}, fast...)
	for range 2 {
		s.Servers = append(s.Servers, start(t, config{program: b, args: follow}))
	}
	// A sentinel that finds no replicas at first looks for them only every 10 s.
	if err := poll(func() error { return online(master, 2) }); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	conf := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 2\n"+
		"sentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 10000\n", sentinelName, master.Port())
	for range sentinels {
		s.Sentinels = append(s.Sentinels, start(t, config{program: b, sentinel: conf}))
	}
	for _, n := range s.Sentinels {
		// Old versions do not know this command, and are slower. Shortening any
		// timeout but these two led to split votes, and to failovers of many
		// seconds.
		_, _ = n.do("SENTINEL", "DEBUG", "info-period", "100", "publish-period", "100")
	}
	for _, n := range s.Sentinels {
		if err := poll(func() error { return s.complete(n) }); err != nil {
			t.Fatalf("redistest: %v", err)
		}
	}
	return s
}

// complete reports whether a sentinel knows all servers and sentinels.
func (s *Sentinel) complete(n *Server) error {
	reply, err := n.do("SENTINEL", "MASTER", sentinelName)
	if err != nil {
		return err
	}
	m, ok := reply.(map[any]any)
	if !ok {
		return fmt.Errorf("SENTINEL MASTER says %v", reply)
	}
	if m["flags"] != "master" || m["num-slaves"] != "2" || m["num-other-sentinels"] != "2" {
		return fmt.Errorf("to the sentinel on port %d the master is %v, with %v replicas and %v other sentinels",
			n.Port(), m["flags"], m["num-slaves"], m["num-other-sentinels"])
	}
	return nil
}

// Client returns a client that asks the sentinels for the master. It is closed
// when the test ends. Its options are go-redis' defaults, unless the functions
// change them.
func (s *Sentinel) Client(t testing.TB, change ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: sentinelName}
	for _, n := range s.Sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, n.Addr())
	}
	for _, f := range change {
		f(o)
	}
	client := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}
