//go:build linux

package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// A server loses its data while four processes use it: it restarts, or only drops the keys. Each
// time the bucket starts empty.
func TestDataLoss_CostsOneCapacity(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	fs := newFleets(t, leaky, window)
	fs.addSome(4, func() redis.UniversalClient { return server.Client(t) }, role{})
	const losses = 4
	for i := range losses {
		fs.run(d.between(200*time.Millisecond, 600*time.Millisecond))
		if i%2 == 0 {
			server.Restart(t)
		} else {
			server.Do(t, "FLUSHALL")
		}
		t.Logf("after loss %d the first call went %v later", i+1, fs.goesOn(1).Round(time.Millisecond))
	}
	fs.run(300 * time.Millisecond)
	for _, f := range fs {
		f.stop()
		require.Greater(t, len(f.lives()), 1)
		f.checkBoth(nothing, f.losses())
		require.LessOrEqual(t, len(f.lives()), losses+1)
	}
}

// elsewhere dials the server that the test has set, whatever address a client asks
// for.
type elsewhere struct{ addr atomic.Value }

func (e *elsewhere) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, e.addr.Load().(string))
}

// pair is a master with a replica that the test can cut off from it, and a dialer
// to the one of them in use.
type pair struct {
	master, replica *redistest.Server
	link            *redistest.Proxy
	way             elsewhere
}

// newPair starts the two. start starts the replica.
func newPair(t *testing.T, start func(t testing.TB, args ...string) *redistest.Server) *pair {
	t.Helper()
	p := &pair{master: redistest.Start(t, "--repl-diskless-sync-delay", "0")}
	p.link = redistest.NewProxy(t, p.master.Addr())
	_, port, err := net.SplitHostPort(p.link.Addr())
	require.NoError(t, err)
	p.replica = start(t, "--replicaof", "127.0.0.1 "+port)
	p.way.addr.Store(p.master.Addr())
	eventually(t, "the replica follows", func() bool {
		return strings.Contains(fmt.Sprint(p.master.Do(t, "INFO", "replication")), "state=online")
	})
	return p
}

func (p *pair) client(t *testing.T) *redis.Client {
	return p.master.Client(t, func(o *redis.Options) { o.Dialer = p.way.dial })
}

// follows waits until the replica has a key. A replica that has just begun to
// follow may have nothing yet: the master waits for its first word.
func (p *pair) follows(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the replica has the key", func() bool { return p.replica.Do(t, "EXISTS", key) == int64(1) })
}

// promote makes the replica take over from the killed master.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	p.replica.Do(t, "REPLICAOF", "NO", "ONE")
	p.way.addr.Store(p.replica.Addr())
}

// lastChange returns the server's time of the latest change of a bucket, as a
// server knows it.
func lastChange(t *testing.T, s *redistest.Server, key string) time.Duration {
	t.Helper()
	head, _ := s.Do(t, "HGET", key, "s").(string)
	require.GreaterOrEqual(t, len(head), 8, "there is no such key")
	return time.Duration(math.Float64frombits(binary.LittleEndian.Uint64([]byte(head)))) * time.Microsecond
}

// A replica that was cut off for a while becomes the master. It has forgotten the
// charges of that while, so callers may use them once more. Nothing else is
// forgotten.
func TestFailover_CostsTheChargesThatItLost(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	p := newPair(t, redistest.Start)
	fs := newFleets(t, leaky, window)
	fs.addSome(4, func() redis.UniversalClient { return p.client(t) }, role{})
	fs.goesOn(10)
	for _, f := range fs {
		p.follows(t, f.members[0].store.Key(f.key))
	}
	fs.run(d.between(0, 500*time.Millisecond))

	p.link.Set(redistest.Faults{SwallowReplies: 1})
	cut := time.Duration(time.Now().UnixNano())
	fs.run(d.between(100*time.Millisecond, 600*time.Millisecond))
	for _, f := range fs { // the calls that leave may be booked before
		eventually(t, "calls are booked", func() bool { return len(f.of(func(g grant) bool { return g.at > cut }).grants) >= 10 })
	}
	p.master.Kill(t)
	killed := time.Duration(time.Now().UnixNano())
	var known []time.Duration
	for _, f := range fs {
		known = append(known, lastChange(t, p.replica, f.members[0].store.Key(f.key)))
	}
	p.promote(t)
	t.Logf("after the failover the first call went %v later", fs.goesOn(1).Round(time.Millisecond))
	fs.run(700 * time.Millisecond)
	for i, f := range fs {
		f.stop()
		lost := len(f.of(func(g grant) bool { return known[i] < g.at && g.at <= killed }).grants)
		t.Logf("%d charges are lost", lost)
		require.NotZero(t, lost)
		f.check(func(p promise) float64 { return min(float64(lost), forgotten(p)) })
		p := promiseOf(t, f.limits[0]) // each server keeps it by itself
		f.of(func(g grant) bool { return g.at <= killed }).checkReservations(t, p, 0)
		f.of(func(g grant) bool { return g.at <= known[i] || g.at > killed }).checkReservations(t, p, 0)
		require.Len(t, f.lives(), 1)
	}
}
