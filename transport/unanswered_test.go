package transport

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A refusal slows the clock only after a success; before any it says nothing. So a call
// without an answer must leave the clock unslowed, whichever way its permit goes.
func TestACallWithoutAnAnswerIsNoSuccessWhicheverWayItGoes(t *testing.T) {
	one := outbound.Limit{Capacity: 10, LeakRate: 1}
	buckets := map[string]func() *outbound.Bucket{
		"one limit":          func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", one)) },
		"two limits":         func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", one, one.Of(1, "other"))) },
		"beside an InFlight": func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", one, outbound.InFlight(5))) },
	}
	fails := func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
	ways := map[string]struct {
		base   base
		tell   func(*outbound.Permit) // in OnResponse; nil: the test does not set it
		slowed bool
	}{
		"an error":                        {base: fails},
		"a panic":                         {base: func(*http.Request) (*http.Response, error) { panic("base") }},
		"a cached response":               {base: answer(429, nil, "Age", "7")},
		"a response":                      {base: answer(200, nil), slowed: true},
		"OnResponse":                      {base: answer(200, nil), tell: func(*outbound.Permit) {}, slowed: true},
		"OnResponse, an error":            {base: fails, tell: func(*outbound.Permit) {}},
		"OnResponse says that it failed":  {base: answer(200, nil), tell: (*outbound.Permit).Failed},
		"OnResponse has heard no answer":  {base: answer(200, nil), tell: func(p *outbound.Permit) { p.Answered(outbound.Answer{}) }},
		"OnResponse says that it is done": {base: answer(200, nil), tell: (*outbound.Permit).Done, slowed: true},
	}
	refuse := answer(429, nil, "Retry-After", "1")
	send := func(t *testing.T, ctx context.Context, rt http.RoundTripper) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.test/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = recover() }()
		if resp, err := rt.RoundTrip(req); err == nil {
			closeResponse(resp)
		}
	}
	for kind, bucket := range buckets {
		for way, c := range ways {
			for _, costed := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					b := bucket()
					ctx := t.Context()
					if costed {
						ctx, _ = WithCost(ctx, outbound.Cost{1})
					}
					rt := &Transport{Limiter: b, Base: c.base}
					if c.tell != nil {
						rt.OnResponse = func(_ *http.Response, p *outbound.Permit) { c.tell(p) }
					}
					for _, rt := range []*Transport{{Limiter: b, Base: refuse}, rt, {Limiter: b, Base: refuse}} {
						send(t, ctx, rt)
						time.Sleep(time.Minute)
					}
					if s := stateOf(t, b); (s.Speed < 1) != c.slowed {
						t.Errorf("%s, %s, WithCost %v: speed %v, slowed: want %v", kind, way, costed, s.Speed, c.slowed)
					}
				})
			}
		}
	}
}

// The route's own limiter hears of it, too, and not only the limiter that the API has named.
func TestACallWithoutAnAnswerIsNoSuccessForAnyLimiterOfItsRoute(t *testing.T) {
	for way, names := range map[string][2]string{"no name": {"", ""}, "a known name": {"ab", "cd"}} {
		for end, c := range map[string]struct {
			base   base
			slowed bool
		}{
			"error":   {func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, false},
			"success": {answer(200, nil, "X-Bucket", names[0]), true},
		} {
			synctest.Test(t, func(t *testing.T) {
				d, _ := hourly()
				made := map[string]*outbound.Bucket{}
				d.Limiters.New = func(key string) (outbound.Limiter, error) {
					made[key] = outbound.Must(outbound.NewBucket(key, outbound.Limit{Capacity: 10, LeakRate: 1}))
					return made[key], nil
				}
				for _, base := range []base{
					answer(429, nil, "Retry-After", "1", "X-Bucket", names[0]), c.base,
					answer(429, nil, "Retry-After", "1", "X-Bucket", names[1]), // a new name: the route's own limiter hears of it as well
				} {
					_ = fetch(t, &Transport{For: d.For, OnResponse: d.Learn, Base: base}, "https://api.test/a")
					time.Sleep(time.Minute)
				}
				delete(made, "api.test=cd")
				if len(made) != 1 && names[0] == "" || len(made) != 2 && names[0] != "" {
					t.Errorf("%s: limiters %v", way, made)
				}
				for key, b := range made {
					if s := stateOf(t, b); (s.Speed < 1) != c.slowed {
						t.Errorf("%s, %s: %q has speed %v, slowed: want %v", way, end, key, s.Speed, c.slowed)
					}
				}
			})
		}
	}
}
