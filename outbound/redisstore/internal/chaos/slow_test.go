//go:build linux

package chaos

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
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

// distant returns a client that is a round trip of this length away from its server,
// also when it opens a connection.
func distant(t *testing.T, s *redistest.Server, trip time.Duration, change ...func(*redis.Options)) *redis.Client {
	p := redistest.NewProxy(t, s.Addr())
	p.Set(redistest.Faults{Delay: trip / 2, DelayRequests: trip / 2, Handshakes: true})
	return s.Client(t, append(change, func(o *redis.Options) {
		o.Addr = p.Addr()
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(trip)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})...)
}

// Workers far from the server make their calls at their reservations, as those near to it
// do, from the first call on.
func TestFarServer_LimitIsKept(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, trips := range [][]time.Duration{{20 * time.Millisecond}, {100 * time.Millisecond}, {200 * time.Millisecond}, {0, 200 * time.Millisecond}} {
		f := newFleet(t, outbound.PerSecond(100))
		for i := range 4 {
			f.add(distant(t, server, trips[i%len(trips)]), role{callers: 20})
		}
		f.goesOn(1)
		f.run(1200 * time.Millisecond)
		t.Logf("%v away:", trips)
		f.stop()
		f.checkBoth(nothing, leaked(jitter+f.late.most()))
	}
}

// jitter is how far a worker's estimate of a distant server's clock may be off on a machine that
// has time. A reply that the proxy sends late, and that the worker reads late, moves it by half
// of both, and later calls with it. The bound of lateness covers no call that was seen after the
// machine had caught up.
const jitter = 5 * time.Millisecond
