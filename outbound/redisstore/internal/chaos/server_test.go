//go:build linux

package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// counter and windowed are limits that count: almost nothing leaks from the one, and the other is
// longer than any test. So their levels are the number of charged calls.
var (
	counter  = outbound.Limit{Capacity: 1e6, LeakRate: 1e-3}
	windowed = outbound.Window(1e6, time.Hour)
)

// tally counts calls without a queue.
type tally struct {
	confirmed atomic.Int64
	doubtful  atomic.Int64 // failed calls that may have been charged
}

// acquire asks for one call.
func (n *tally) acquire(b *outbound.Bucket) error {
	from := time.Now()
	_, err := b.Acquire(context.Background(), outbound.Cost{1})
	if err == nil {
		n.confirmed.Add(1)
	} else if time.Since(from) > 10*time.Millisecond { // else the store made no attempt
		n.doubtful.Add(1)
	}
	return err
}

// A server hangs again and again. It charges every admitted call. Of the others it
// charges at most the calls of the one request per worker that was under way: it does
// not carry out later what the worker has given up. Meanwhile a fleet keeps its limits.
func TestHungServer_ChargesNoAbandonedCallLater(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	f := newFleet(t, leaky, window)
	f.addSome(2, func() redis.UniversalClient { return server.Client(t) }, role{})
	var n tally
	var b *outbound.Bucket
	for range 4 {
		one, err := outbound.NewSharedBucket(redisstore.New(server.Client(t), redisstore.Config{Timeout: 400 * time.Millisecond}), "counter", counter, windowed)
		require.NoError(t, err)
		b = one
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = n.acquire(one) // acquire counts the failures
					nap(ctx, 2*time.Millisecond)
				}
			})
		}
	}
	admitted := func(more int64) {
		want := n.confirmed.Load() + more
		eventually(t, "calls are admitted", func() bool { return n.confirmed.Load() >= want })
	}
	for range 3 {
		admitted(100)
		time.Sleep(d.between(0, 100*time.Millisecond))
		server.Stop(t)
		time.Sleep(d.between(200*time.Millisecond, 900*time.Millisecond))
		server.Cont(t)
		admitted(16)
	}
	cancel()
	wg.Wait()
	level := func() (n float64) {
		eventually(t, "the level is known", func() bool { // a call may have failed a moment ago
			states, err := b.States(context.Background())
			if err == nil { // of calls that came too late the leaky limit returns what is safe, and the window all
				require.GreaterOrEqual(t, states[0].Level+0.5, states[1].Level)
				n = states[1].Level
			}
			return err == nil
		})
		return n
	}
	charged, confirmed, doubtful := level(), float64(n.confirmed.Load()), float64(n.doubtful.Load())
	t.Logf("charged %.3f, admitted %v, in doubt %v", charged, confirmed, doubtful)
	require.GreaterOrEqual(t, charged, confirmed-1, "calls were admitted that are not charged")
	require.LessOrEqual(t, charged, confirmed+doubtful)
	time.Sleep(200 * time.Millisecond)
	require.InDelta(t, charged, level(), 0.1, "an abandoned call was charged later")
	f.goesOn(20)
	f.check(nothing)
}

// A store is slow, sometimes more and sometimes less. An operation waits for the reply
// up to its timeout, and no longer. Meanwhile the queue's calls keep the limit.
func TestSlowStore_DelaysCallsAndKeepsLimits(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	f := newFleet(t, outbound.Limit{Capacity: 10, LeakRate: 100})
	ways := []*redistest.Proxy{redistest.NewProxy(t, server.Addr()), redistest.NewProxy(t, server.Addr())}
	for _, w := range ways {
		f.add(behind(t, server, w), role{})
	}
	f.add(server.Client(t), role{})
	f.goesOn(20)
	const far = 300 * time.Millisecond
	for _, delay := range []time.Duration{far, 0, 2 * time.Second, 6 * time.Second, 0} {
		for _, w := range ways {
			w.Set(redistest.Faults{Delay: delay})
		}
		f.run(d.between(300*time.Millisecond, 700*time.Millisecond))
	}
	for _, m := range f.members {
		goesOn(t, &m.calls, 1)
	}
	// A worker far from the store is always late by the length of the way, and a worker
	// near it is not. So calls that are due at different times may come together.
	f.checkBoth(nothing, leaked(far))
}

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

// returns is a store that counts what callers give back because a reply came too late.
// On a busy machine any reply may be too late. The store takes back only as much of it
// as is safe.
type returns struct {
	store.Store
	n *atomic.Int64
}

func (r returns) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	reply, err := r.Store.Update(ctx, key, op)
	if !reply.Stale || reply.Reported {
		r.n.Add(int64(len(op.Unused)))
	}
	return reply, err
}

// The slots of several buckets move from master to master while processes use them. Each call is
// charged exactly once, none fails, and a fleet keeps its limits.
func TestMigration_ChargesEachCallOnce(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := redistest.SharedCluster(t)
	f := newFleet(t, leaky, window)
	f.addSome(3, func() redis.UniversalClient { return c.Client(t) }, role{timeout: time.Minute}) // the machine may be busy
	keys := []string{"one", "two", "three", "four"}
	// All keys have one tag, and so one slot.
	config := redisstore.Config{Prefix: "{" + d.tag() + "}", Timeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var made [4]tally
	var late [4]atomic.Int64
	var buckets [4]*outbound.Bucket
	for range 3 {
		s := redisstore.New(c.Client(t), config)
		for k, key := range keys {
			b, err := outbound.NewSharedBucket(returns{s, &late[k]}, key, counter)
			require.NoError(t, err)
			buckets[k] = b
			for range 2 {
				wg.Go(func() {
					for ctx.Err() == nil {
						// On a busy machine an answer may come too late to be used: then the call
						// goes back.
						if err := made[k].acquire(b); err != nil && !strings.Contains(err.Error(), "come too late") {
							t.Error(err)
							return
						}
						nap(ctx, time.Millisecond)
					}
				})
			}
		}
	}
	goOn := func() {
		want := made[0].confirmed.Load() + 20
		eventually(t, "calls are admitted", func() bool { return made[0].confirmed.Load() >= want })
		f.goesOn(20)
	}
	for range 3 {
		for _, name := range []string{redisstore.New(nil, config).Key(keys[0]), f.members[0].store.Key(f.key)} {
			goOn()
			m := c.Migrate(t, name, c.Master(t, c.Owner(t, name)))
			time.Sleep(d.between(0, 50*time.Millisecond))
			for range d.IntN(len(keys)) {
				m.Move(t, 1)
				time.Sleep(d.between(0, 50*time.Millisecond))
			}
			m.Finish(t)
		}
	}
	goOn()
	cancel()
	wg.Wait()
	for k, key := range keys {
		s, err := buckets[k].State(t.Context())
		require.NoError(t, err)
		n, back := float64(made[k].confirmed.Load()), float64(late[k].Load())
		t.Logf("%s: admitted %v, charged %.3f, given back %v", key, n, s.Level, back)
		require.GreaterOrEqual(t, s.Level, n-0.5)
		require.LessOrEqual(t, s.Level, n+back+0.5)
	}
	for _, m := range f.members {
		n, err := m.failed()
		require.Zero(t, n, "%v", err)
	}
	f.check(nothing)
	require.Len(t, f.lives(), 1)
}
