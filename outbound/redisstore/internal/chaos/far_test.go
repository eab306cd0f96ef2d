//go:build linux

package chaos

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

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

// Workers far from the server make their calls at their places, as those near to it
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
