package transport_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// clones sends a copy of a request.
func clones(inside http.RoundTripper, req *http.Request) (*http.Response, error) {
	return inside.RoundTrip(req.Clone(req.Context()))
}

// twice sends a request twice, as a client that retries.
func twice(inside http.RoundTripper, req *http.Request) (*http.Response, error) {
	if resp, err := inside.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
	return inside.RoundTrip(req)
}

// rescued turns a panic inside into an error.
func rescued(inside http.RoundTripper, req *http.Request) (resp *http.Response, err error) {
	if v := panics(func() { resp, err = inside.RoundTrip(req) }); v != nil {
		err = v.(error)
	}
	return resp, err
}

// A response is judged by the outermost transport that has a limiter for it, and Judge changes that.
func TestNested_OneJudges(t *testing.T) {
	type T = transport.Transport
	none := func(http.RoundTripper) http.RoundTripper { return nil }
	direct := func(rt http.RoundTripper) http.RoundTripper { return rt }
	hidden := func(rt http.RoundTripper) http.RoundTripper { return struct{ http.RoundTripper }{rt} }
	middle := func(judge transport.Judge) func(http.RoundTripper) http.RoundTripper {
		return func(rt http.RoundTripper) http.RoundTripper { return &T{Base: rt, Judge: judge} }
	}
	for name, c := range map[string]struct {
		outer, inner T
		between      func(http.RoundTripper) http.RoundTripper
		want         string
	}{
		"alone":                      {T{}, T{}, none, "outer"},
		"alone, always":              {T{Judge: transport.JudgeAlways}, T{}, none, "outer"},
		"alone, never":               {T{Judge: transport.JudgeNever}, T{}, none, ""},
		"nested":                     {T{}, T{}, direct, "outer"},
		"with OnResponse":            {T{OnResponse: ignore}, T{OnResponse: ignore}, direct, "outer"},
		"with a Timeout":             {T{Timeout: time.Hour}, T{Timeout: time.Hour}, direct, "outer"},
		"one that unwraps":           {T{}, T{}, func(rt http.RoundTripper) http.RoundTripper { return between{rt, clones} }, "outer"},
		"one that hides":             {T{}, T{}, hidden, "outer inner"},
		"one that hides, never":      {T{}, T{Judge: transport.JudgeNever}, hidden, "outer"},
		"inner always":               {T{}, T{Judge: transport.JudgeAlways}, direct, "outer inner"},
		"outer never":                {T{Judge: transport.JudgeNever}, T{}, direct, "inner"},
		"no limiter for this one":    {T{For: func(*http.Request) outbound.Limiter { return nil }}, T{}, direct, "inner"},
		"unlimited":                  {T{For: func(*http.Request) outbound.Limiter { return outbound.Unlimited{} }}, T{}, direct, "inner"},
		"three":                      {T{}, T{}, middle(transport.JudgeNever), "outer"},
		"three, the outermost never": {T{Judge: transport.JudgeNever}, T{}, middle(transport.JudgeOutermost), "inner"},
	} {
		outer := outbound.Must(outbound.NewBucket("outer", slow))
		inner := outbound.Must(outbound.NewBucket("inner", slow))
		api := answer(429, nil, "Retry-After", "700")
		c.inner.Limiter, c.inner.Base = inner, api
		if c.outer.For == nil {
			c.outer.Limiter = outer
		}
		if c.outer.Base = c.between(&c.inner); c.outer.Base == nil {
			c.outer.Base = api
		}
		err := get(t.Context(), &c.outer)
		fatalIf(t, err == nil, "no refusal")
		held := ""
		for _, b := range []*outbound.Bucket{outer, inner} {
			if stateOf(t, b).HeldFor > 0 {
				held += " " + b.Key()
			}
		}
		errorIf(t, held != c.want && held != " "+c.want, "%s: held:%s, want %s", name, held, c.want)
	}
}

// A limiter on which answers have no effect leaves judging to the next transport, whatever is around
// the limiter.
func TestNested_NextJudgesForADeafLimiter(t *testing.T) {
	unlimited := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return outbound.Unlimited{}, nil }}
	tried := func(report func(context.Context, shadow.Verdict)) outbound.Limiter {
		return shadow.New(bucket(slow), time.Minute, report)
	}
	observed := func(l outbound.Limiter) outbound.Limiter {
		return outbound.Observe(l, "", func(context.Context, outbound.Event) {})
	}
	for name, outer := range map[string]outbound.Limiter{
		"a shadow":                       tried(func(context.Context, shadow.Verdict) {}),
		"a shadow without report":        tried(nil),
		"a shadow, observed":             observed(tried(func(context.Context, shadow.Verdict) {})),
		"no permit":                      waiting(0), // as that of package outbound/xrate
		"Unlimited of a Keyed":           unlimited.For("tenant"),
		"Unlimited of a Keyed, observed": observed(unlimited.For("tenant")),
	} {
		for _, jobs := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				total := bucket(slow)
				rt := &transport.Transport{Limiter: outer, Base: &transport.Transport{Limiter: total, Base: answer(429, nil, "Retry-After", "30")}}
				var err error
				if jobs {
					err = outbound.Do(t.Context(), outer, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, rt) })
				} else {
					err = get(t.Context(), rt)
				}
				if s := stateOf(t, total); err == nil || s.HeldFor != 30*time.Second {
					t.Errorf("%s, jobs %t: the total is held for %v, want 30 s; %v", name, jobs, s.HeldFor, err)
				}
			})
		}
	}
}

// A transport that does not judge settles and ends its calls all the same.
func TestNested_TheOtherSettles(t *testing.T) {
	b := bucket(slow, outbound.InFlight(1))
	rt := &transport.Transport{
		Limiter: bucket(slow),
		Base: &transport.Transport{
			Limiter: b,
			Used:    func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{5}, true },
			Base:    answer(200, nil),
		},
	}
	for range 3 {
		check(t, get(t.Context(), rt))
	}
	wantCharged(t, b, 15)
}

// A response of another host than the first adjusts a limiter of For only, also if that is the inner
// one's.
func TestNested_RedirectToAnotherHost(t *testing.T) {
	total, hosts := bucket(slow), map[string]*outbound.Bucket{"api.test": bucket(slow), "other.test": bucket(slow)}
	_ = get(t.Context(), &transport.Transport{Limiter: total, Base: &transport.Transport{
		For: transport.ByHost(func(host string) outbound.Limiter { return hosts[host] }),
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "api.test" {
				return answer(302, nil, "Location", "http://other.test/")(req)
			}
			return answer(429, nil, "Retry-After", "700")(req)
		}),
	}})
	for b, held := range map[*outbound.Bucket]bool{total: false, hosts["api.test"]: false, hosts["other.test"]: true} {
		s := stateOf(t, b)
		errorIf(t, (s.HeldFor > 0) != held, "held for %v, want a hold: %v", s.HeldFor, held)
	}
}

// If a limiter inside refuses a request, nothing was sent, and the permits around it return their
// cost. If the API may have seen the request, they stay charged.
func TestNested_RefusalInsideReturnsPermitsAround(t *testing.T) {
	calls := func(n float64) *outbound.Bucket {
		return bucket(outbound.Limit{Capacity: n, LeakRate: 1e-6}, outbound.InFlight(1))
	}
	retried := func(inner http.RoundTripper) http.RoundTripper { return between{inner, twice} }
	pool := func(inner http.RoundTripper) http.RoundTripper {
		return &transport.Pool{Members: []*transport.Transport{{Base: inner}, {Base: inner}}}
	}
	broken, crashed := errors.New("no network"), errors.New("crash")
	for _, c := range []struct {
		name    string
		inside  func(inner http.RoundTripper) http.RoundTripper // what the transport around has as its Base
		free    int                                             // calls that the inner bucket has left
		answer  error                                           // of the API
		charged float64                                         // the outer bucket
	}{
		{name: "refused"},
		{name: "sent", free: 1, charged: 1},
		{name: "sent and failed", free: 1, answer: broken, charged: 1},
		{name: "refused behind a wrapper", inside: retried},
		{name: "sent, then refused", free: 1, charged: 1, inside: retried},
		{name: "refused by the third", inside: func(inner http.RoundTripper) http.RoundTripper {
			return &transport.Transport{Limiter: calls(3), Base: inner}
		}},
		{name: "refused by a pool", inside: pool},
		{name: "refused by a pool's member", inside: func(inner http.RoundTripper) http.RoundTripper {
			return &transport.Pool{Members: []*transport.Transport{{Limiter: refusing(outbound.ErrThrottled), Base: inner}}}
		}},
		{name: "sent by a pool", free: 1, answer: broken, charged: 1, inside: pool},
		{name: "a pool panics", free: 1, answer: crashed, charged: 1, inside: func(inner http.RoundTripper) http.RoundTripper {
			return between{pool(inner), rescued}
		}},
		{name: "a pool whose member was sent and then refused", free: 1, charged: 1, inside: func(inner http.RoundTripper) http.RoundTripper {
			return &transport.Pool{Members: []*transport.Transport{{Base: between{inner, twice}}, {Base: inner}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := 0
			inner, outer := calls(3), calls(3)
			for range 3 - c.free {
				trip(t, &transport.Transport{Limiter: inner, Base: answer(200, nil)})
			}
			inside := http.RoundTripper(&transport.Transport{Limiter: inner, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				if sent++; c.answer == crashed {
					panic(crashed)
				} else if c.answer != nil {
					return nil, c.answer
				}
				return answer(200, http.NoBody)(req)
			})})
			if c.inside != nil {
				inside = c.inside(inside)
			}
			b := bucket(slow) // the outermost, whose permit ends with the headers
			err := get(t.Context(), &transport.Transport{Limiter: b, Base: &transport.Transport{Limiter: outer, Base: inside}})
			errorIf(t, c.free == 0 && !errors.Is(err, outbound.ErrThrottled) || sent != c.free,
				"%d sent: %v", sent, err)
			wantCharged(t, outer, c.charged, 0)
			wantCharged(t, b, c.charged)
		})
	}
	bubble(t, "cancelled in the queue inside", func(t *testing.T) {
		outer := calls(3)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := get(ctx, &transport.Transport{Limiter: outer, Base: &transport.Transport{Limiter: waiting(time.Minute)}})
		wantCharged(t, outer, 0, 0)
		errorIf(t, !errors.Is(err, context.Canceled), "%v", err)
	})
}

// Report adjusts the bucket of a call that another client has sent, such as one of WebSockets, and ends the call.
func TestReport_JudgesAsRoundTripDoes(t *testing.T) {
	for name, c := range map[string]struct {
		resp *http.Response
		held time.Duration
		used float64
	}{
		"refused":   {&http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"700"}}}, 700 * time.Second, 8}, // and no burst after it
		"cost":      {&http.Response{StatusCode: 101}, 0, 3},
		"no answer": {nil, 0, 1},
	} {
		bubble(t, name, func(t *testing.T) {
			b := bucket(outbound.Limit{Capacity: 9, LeakRate: 1}, outbound.InFlight(1))
			permit := must(b.Acquire(t.Context(), outbound.Cost{1}))
			(&transport.Transport{Used: func(r *http.Response) (outbound.Cost, bool) {
				return outbound.Cost{3}, r.StatusCode == 101
			}}).Report(c.resp, &permit)
			states := must(b.States(t.Context()))
			errorIf(t, states[0].HeldFor != c.held || states[0].Level != c.used || states[1].Level != 0,
				"held for %v, level %v, in flight %v", states[0].HeldFor, states[0].Level, states[1].Level)
		})
	}
}

// The host that a redirect leads to does not adjust or settle the limiter of the API that was asked,
// unless it is the same host. It adjusts a limiter of its own.
func TestRedirect_HostHoldsNoOther(t *testing.T) {
	const api, evil = "https://api.test", "https://evil.test"
	refusal := []string{"Retry-After", "1800"}
	for name, c := range map[string]struct {
		hops   []string // that the answers lead to, one after the other
		status int      // of the last answer
		header []string
		byHost bool
		bare   bool // Base does not set the response's Request
		gate   bool // Base sends clones to a gateway
		held   bool
	}{
		"refused by the API itself":       {status: 429, header: refusal, held: true},
		"refused by another host":         {hops: []string{evil + "/"}, status: 429, header: refusal},
		"and without a Request":           {hops: []string{evil + "/"}, status: 429, header: refusal, bare: true},
		"down":                            {hops: []string{evil + "/"}, status: 503, header: refusal},
		"nothing remains":                 {hops: []string{evil + "/"}, status: 200, header: []string{"X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1800"}},
		"within another host":             {hops: []string{evil + "/", "/again"}, status: 429, header: refusal},
		"within the API":                  {hops: []string{"/again"}, status: 429, header: refusal, held: true},
		"within the API, no Request":      {hops: []string{"/again"}, status: 429, header: refusal, bare: true, held: true},
		"within the API by a gateway":     {hops: []string{"/again"}, status: 429, header: refusal, gate: true, held: true},
		"refused by another one, gateway": {hops: []string{evil + "/"}, status: 429, header: refusal, gate: true},
		"by another spelling of its host": {hops: []string{"https://API.test:443/"}, status: 429, header: refusal, held: true},
		"away and back":                   {hops: []string{evil + "/", api + "/end"}, status: 429, header: refusal, held: true},
		"each host has a limiter":         {hops: []string{evil + "/"}, status: 429, header: refusal, byHost: true},
	} {
		for _, followed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				hosts := map[string]*outbound.Bucket{"api.test": callsAndTokens(), "evil.test": callsAndTokens()}
				at, signals := 0, 0
				rt := &transport.Transport{
					OnSignal: func(_ *http.Response, s *profile.Signal) { signals++ },
					Used: func(resp *http.Response) (outbound.Cost, bool) {
						return outbound.Cost{50}, resp.StatusCode != http.StatusFound
					},
					Base: roundTripper(func(req *http.Request) (*http.Response, error) {
						if c.gate {
							req = req.Clone(req.Context())
							req.URL.Host = "10.0.0." + strconv.Itoa(at+1) + ":8080"
						}
						status, header := c.status, c.header
						if at < len(c.hops) {
							status, header = http.StatusFound, []string{"Location", c.hops[at]}
							at++
						}
						resp, err := answer(status, http.NoBody, header...)(req)
						if c.bare {
							resp.Request = nil
						}
						return resp, err
					}),
				}
				if followed {
					rt.OnResponse = ignore
				}
				if rt.Limiter = hosts["api.test"]; c.byHost {
					rt.For = transport.ByHost(func(host string) outbound.Limiter { return hosts[host] })
				}
				check(t, fetch(t, rt, api+"/"))
				s := stateOf(t, hosts["api.test"])
				if held := s.HeldFor > 0; held != c.held || signals != len(c.hops)+1 {
					t.Errorf("%s (followed: %v): held for %v, %d signals", name, followed, s.HeldFor, signals)
				}
				if used := float64(len(c.hops)) + 50; c.held && s.Level < used || !c.held && s.Level > 10 {
					t.Errorf("%s (followed: %v): level %v", name, followed, s.Level)
				}
				if s = stateOf(t, hosts["evil.test"]); (s.HeldFor > 0) != c.byHost {
					t.Errorf("%s (followed: %v): the other host is held for %v", name, followed, s.HeldFor)
				}
			})
		}
	}
}

// A Base that follows redirects itself says in the response's Request where they ended.
func TestRedirect_KeepsTheEndOfWhatBaseFollows(t *testing.T) {
	client := &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path != "/end" {
			return answer(http.StatusFound, http.NoBody, "Location", "/end")(req)
		}
		return answer(200, nil)(req)
	})}
	rt := &transport.Transport{Base: roundTripper(func(req *http.Request) (*http.Response, error) { return client.Do(req) }), Limiter: bucket(slow)}
	resp := open(t, t.Context(), rt)
	finish(resp)
	got := resp.Request.URL.Path
	errorIf(t, got != "/end", "the response is of %q, want /end", got)
}
