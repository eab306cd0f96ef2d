package transport_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// again sends a request twice, as a client that retries, and has a transport inside.
type again struct{ inside http.RoundTripper }

func (a again) Unwrap() http.RoundTripper { return a.inside }

func (a again) RoundTrip(req *http.Request) (*http.Response, error) {
	if resp, err := a.inside.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
	return a.inside.RoundTrip(req)
}

// If a limiter inside refuses a request, nothing was sent, and the permits of the limiters around it
// are given back. If the API may have seen the request, they stay charged.
func TestRow_RefusalInsideReturnsThePermitsAround(t *testing.T) {
	hourly := func(key string, n float64) *outbound.Bucket {
		return outbound.Must(outbound.NewBucket(key, outbound.Window(n, time.Hour), outbound.InFlight(1)))
	}
	take := func(t *testing.T, b *outbound.Bucket) {
		p, err := b.Acquire(context.Background(), outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}
	left := func(t *testing.T, b *outbound.Bucket) float64 {
		s, err := b.States(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if s[1].Level != 0 {
			t.Errorf("%s: %v in flight", b.Key(), s[1].Level)
		}
		return s[0].Remaining
	}
	send := func(ctx context.Context, rt http.RoundTripper) error {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
		resp, err := rt.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	broken := errors.New("no network")

	for _, c := range []struct {
		name   string
		inside func(inner, api http.RoundTripper) http.RoundTripper // what the transport around has as its Base
		free   float64                                              // of the inner bucket's 3
		answer error                                                // of the API
		left   float64                                              // of the outer bucket's 3
	}{
		{name: "refused", left: 3},
		{name: "sent", free: 1, left: 2},
		{name: "sent and failed", free: 1, answer: broken, left: 2},
		{name: "refused behind a wrapper", left: 3, inside: func(inner, _ http.RoundTripper) http.RoundTripper { return again{inner} }},
		{name: "sent, then refused", free: 1, left: 2, inside: func(inner, _ http.RoundTripper) http.RoundTripper { return again{inner} }},
		{name: "refused by the third", left: 3, inside: func(inner, _ http.RoundTripper) http.RoundTripper {
			return &transport.Transport{Limiter: hourly("middle", 3), Base: inner}
		}},
		{name: "refused by a pool", left: 3, inside: func(inner, _ http.RoundTripper) http.RoundTripper {
			return &transport.Pool{Members: []*transport.Transport{{Base: inner}, {Base: inner}}}
		}},
		{name: "sent by a pool", free: 1, answer: broken, left: 2, inside: func(inner, _ http.RoundTripper) http.RoundTripper {
			return &transport.Pool{Members: []*transport.Transport{{Base: inner}, {Base: inner}}}
		}},
		{name: "a pool whose member was sent and then refused", free: 1, left: 2, inside: func(inner, _ http.RoundTripper) http.RoundTripper {
			return &transport.Pool{Members: []*transport.Transport{{Base: again{inner}}, {Base: inner}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				api := roundTripper(func(*http.Request) (*http.Response, error) {
					if calls++; c.answer != nil {
						return nil, c.answer
					}
					return status(200), nil
				})
				inner, outer := hourly("inner", 3), hourly("outer", 3)
				for range int(3 - c.free) {
					take(t, inner)
				}
				var inside http.RoundTripper = &transport.Transport{Limiter: inner, Base: api}
				if c.inside != nil {
					inside = c.inside(inside, api)
				}
				err := send(context.Background(), &transport.Transport{Limiter: outer, Base: inside})
				if c.free == 0 && !errors.Is(err, outbound.ErrThrottled) || calls != int(c.free) {
					t.Errorf("%d calls: %v", calls, err)
				}
				if got := left(t, outer); got != c.left {
					t.Errorf("the outer bucket has %v left, want %v", got, c.left)
				}
			})
		})
	}

	t.Run("cancelled in the queue inside", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner, outer := outbound.Must(outbound.NewBucket("inner", outbound.PerMinute(1))), hourly("outer", 3)
			take(t, inner)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			err := send(ctx, &transport.Transport{Limiter: outer, Base: &transport.Transport{Limiter: queue.New(inner, queue.Config{})}})
			if got := left(t, outer); err != context.Canceled || got != 3 {
				t.Errorf("%v: the outer bucket has %v left", err, got)
			}
		})
	})
}
