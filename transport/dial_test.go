package transport_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// down is a base that fails to dial, at once, and notes when.
type down struct{ outboundtest.History }

func (d *down) RoundTrip(*http.Request) (*http.Response, error) {
	if d.Add(time.Now(), 1); d.Len() > 1000 { // without pace no time would pass
		time.Sleep(time.Second)
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// insist makes one call after the other, and waits where a limiter says so.
func insist(ctx context.Context, t *testing.T, rt http.RoundTripper) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.test/", nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = rt.RoundTrip(req)
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			time.Sleep(max(time.Millisecond, full.RetryAfter))
		}
	}
}

func TestAnAPIThatIsDownIsDialedNoFasterThanTheLimitAllows(t *testing.T) {
	limit := outbound.Limit{Capacity: 3, LeakRate: 10}
	one := func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("api", limit)) }
	for name, l := range map[string]func() outbound.Limiter{
		"bucket": func() outbound.Limiter { return one() },
		"bucket, observed": func() outbound.Limiter {
			return outbound.Observe(one(), "api", func(context.Context, outbound.Event) {})
		},
		"calls at once": func() outbound.Limiter {
			return outbound.Must(outbound.NewBucket("api", limit, outbound.InFlight(2)))
		},
		"queue": func() outbound.Limiter { return queue.New(one(), queue.Config{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			d := new(down)
			rt := &transport.Transport{Base: d, Limiter: l()}
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { insist(ctx, t, rt) })
			}
			all.Wait()
			if err := d.Check(limit.Capacity, limit.LeakRate, 0.1); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if n := d.Worst(time.Minute).Departures; n < 550 {
				t.Errorf("%s: only %d dials in a minute", name, n)
			}
		})
	}
}

func TestAPortThatRefusesConnectionsIsDialedNoOftenerThanTheLimitAllows(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: &transport.Transport{Base: base, Limiter: outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 3, LeakRate: 1e-6}))}}
	dialed := 0
	for range 20 {
		resp, err := client.Get("http://" + address)
		if err == nil { // another process has taken the port
			resp.Body.Close()
		}
		if !errors.Is(err, outbound.ErrThrottled) {
			dialed++
		}
	}
	if dialed != 3 {
		t.Errorf("dialed %d times, want 3", dialed)
	}
}
