package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// wire is a network with a round trip, in the fake time of a bubble. It has one server.
type wire struct {
	trip     time.Duration
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.incoming:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error { w.once.Do(func() { close(w.closed) }); return nil }

func (w *wire) Addr() net.Addr { return &net.TCPAddr{} }

// dial opens a connection, which takes a round trip.
func (w *wire) dial(context.Context, string, string) (net.Conn, error) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	go w.carry(near, far)
	go w.carry(far, near)
	time.Sleep(w.trip)
	w.incoming <- server
	return client, nil
}

// carry moves what is written to one end to the other, half a round trip later.
func (w *wire) carry(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1000)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		for range chunks {
		}
	}()
	defer close(chunks)
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		if chunks <- (chunk{b[:n], time.Now().Add(w.trip / 2)}); err != nil {
			return
		}
	}
}

// serve has the API answer over TLS on a wire, and returns an http.Transport to it.
func serve(t *testing.T, api http.Handler, trip time.Duration, two bool, idle int) *http.Transport {
	w := &wire{trip: trip, incoming: make(chan net.Conn), closed: make(chan struct{})}
	s := &httptest.Server{Listener: w, EnableHTTP2: two, Config: &http.Server{Handler: api, ErrorLog: log.New(io.Discard, "", 0)}}
	s.StartTLS()
	base := &http.Transport{
		DialContext: w.dial, ForceAttemptHTTP2: two, MaxIdleConnsPerHost: idle,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Time: time.Now}, //nolint:gosec
	}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		s.Close()
	})
	return base
}

// cold is an API of a strict window, over TLS.
type cold struct {
	n      float64
	window time.Duration
	trip   time.Duration
	two    bool // HTTP/2
	idle   int  // the most connections that stay open over HTTP/1
}

// run lets bursts of so many calls go, a minute after each other, and reports how long the longest
// has taken.
func (c cold) run(t *testing.T, bursts, calls int, limiter func(outbound.Limit) outbound.Limiter) (longest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(c.n, c.window)}}
		base := serve(t, api, c.trip, c.two, c.idle)
		rt := &transport.Transport{Base: base, Limiter: limiter(outbound.Window(c.n, c.window))}
		for range bursts {
			begin := time.Now()
			if err := together(calls, func() error { _, err := getURL(t.Context(), rt, "https://api"); return err }); err != nil {
				t.Fatal(err)
			}
			longest = max(longest, time.Since(begin))
			base.CloseIdleConnections()
			time.Sleep(time.Minute)
		}
		if r := api.Report(); r.Refused != 0 || r.Admitted != bursts*calls {
			t.Errorf("%+v: %+v", c, r)
		}
	})
	return longest
}

func queued(l outbound.Limit) outbound.Limiter { return queue.New(bucket(l), queue.Config{}) }

func overStore(l outbound.Limit) outbound.Limiter {
	return queue.New(outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "api", l)), queue.Config{})
}

// unqueued asks a bucket again when it says that a call can leave.
type unqueued struct{ *outbound.Bucket }

func (u unqueued) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	for {
		p, err := u.Bucket.Acquire(ctx, c)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok {
			return p, err
		}
		time.Sleep(full.RetryAfter)
	}
}

// A burst that opens its connections, at the start and after they were closed, does not reach the
// API together with the calls of the next window.
func TestCold_BurstIsNeverRefused(t *testing.T) {
	limiters := map[string]func(outbound.Limit) outbound.Limiter{
		"queue": queued, "store": overStore, "bucket": func(l outbound.Limit) outbound.Limiter { return unqueued{bucket(l)} },
	}
	for _, c := range []cold{
		{n: 20, window: time.Second, trip: 5 * time.Millisecond},
		{n: 20, window: time.Second, trip: 15 * time.Millisecond},
		{n: 20, window: time.Second, trip: 200 * time.Millisecond},
		{n: 100, window: 10 * time.Second, trip: 50 * time.Millisecond},
	} {
		for name, limiter := range limiters {
			for _, two := range []bool{false, true} {
				c.two, c.idle = two, int(c.n)
				if name != "queue" && c.n > 20 || raced && (c.trip < 20*time.Millisecond || !two) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %+v", name, c), func(t *testing.T) {
					took := c.run(t, 2, 4*int(c.n), limiter)
					if ideal := 3*(c.window+10*time.Millisecond) + 4*c.trip; took > ideal+2*c.trip+c.window/64 {
						t.Errorf("took %v, ideal %v", took, ideal)
					}
				})
			}
		}
	}
}

// Where each burst opens new connections, that costs no more than 2 % of the quota.
func TestCold_AlwaysColdCostsLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation of what shorter tests do, too")
	}
	c := cold{n: 20, window: time.Second, trip: 100 * time.Millisecond, idle: -1}
	const windows = 60
	took := c.run(t, 1, 20*windows, queued)
	if ideal := (windows - 1) * 1010 * time.Millisecond; took > ideal+ideal/50+5*c.trip {
		t.Errorf("took %v, ideal %v", took, ideal)
	}
}
