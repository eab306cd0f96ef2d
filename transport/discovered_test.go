package transport

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// hourly is a Discovered with two calls per hour for each limiter, and the keys of those that
// were made.
func hourly() (d *Discovered, keys func() []string) {
	var mu sync.Mutex
	var all []string
	limiters := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, key)
		return outbound.NewBucket(key, outbound.Limit{Capacity: 2, LeakRate: 2. / 3600})
	}}
	d = &Discovered{
		Route:    func(req *http.Request) string { return strings.TrimPrefix(req.URL.Path, "/") },
		Name:     HeaderName("x-bucket"),
		Limiters: limiters,
	}
	return d, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Compact(slices.Sorted(slices.Values(all)))
	}
}

func fetch(t *testing.T, rt http.RoundTripper, url string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err == nil {
		closeResponse(resp)
	}
	return err
}

func TestRoutesOfOneBucketOfTheAPIShareALimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, keys := hourly()
		names := map[string]string{"/a": "ab", "/b": "ab", "/d": "ab", "/c": "c", "/long": strings.Repeat("x", 129)}
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			return answer(200, nil, "X-Bucket", names[req.URL.Path])(req)
		})}
		for _, c := range []struct {
			path string
			full string // the limiter without room; "": all have some
		}{
			{"a", ""}, {"b", ""}, // each by its route
			{"a", ""}, {"b", ""}, // and by the bucket's name
			{"a", "api.test a"},
			{"d", ""}, {"d", "api.test=ab"}, // the name's limiter is shared
			{"c", ""}, {"c", ""}, {"c", "api.test c"},
			{"long", ""}, {"long", ""}, {"long", "api.test long"}, // the name is too long
			{"other", ""}, {"other", ""}, {"other", "api.test other"}, // the API tells no name
			{"", ""}, {"", ""}, {"", ""}, // Route returns none
		} {
			err := fetch(t, rt, "https://api.test/"+c.path)
			var full *outbound.ThrottledError
			if c.full == "" && err != nil || c.full != "" && (!errors.As(err, &full) || full.Key != c.full) {
				t.Errorf("%q: %v, want no room in %q", c.path, err, c.full)
			}
		}
		want := []string{"api.test a", "api.test b", "api.test c", "api.test d", "api.test long", "api.test other", "api.test=ab", "api.test=c"}
		if got := keys(); !slices.Equal(got, want) {
			t.Errorf("limiters %q, want %q", got, want)
		}
	})
}

// A name counts for the host that the program asks, wherever Base sends the request.
func TestANameCountsBehindAGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, keys := hourly()
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.URL.Host = "10.0.0.1:8080"
			return answer(200, nil, "X-Bucket", "ab")(req)
		})}
		for range 2 {
			if err := fetch(t, rt, "https://api.test/a"); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := keys(), []string{"api.test a", "api.test=ab"}; !slices.Equal(got, want) {
			t.Errorf("limiters %q, want %q", got, want)
		}
	})
}

// A request that the second limiter refuses costs the first one nothing.
func TestARequestThatItsNamesLimiterRefusesIsNotChargedToItsRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: answer(200, nil, "X-Bucket", "ab")}
		for _, path := range []string{"a", "b", "c", "b", "c"} {
			if err := fetch(t, rt, "https://api.test/"+path); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			err := fetch(t, rt, "https://api.test/a")
			var full *outbound.ThrottledError
			if !errors.As(err, &full) || full.Key != "api.test=ab" {
				t.Errorf("%v, want no room in the shared one", err)
			}
		}
	})
}

// Whatever names the API has for a route, its requests are no faster than without.
func TestNoNameMakesARouteFaster(t *testing.T) {
	for name, changes := range map[string]int{"never": 1 << 30, "each time": 1, "now and then": 3} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := hourly()
			var sent outboundtest.History
			rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
				sent.Add(time.Now(), 1)
				return answer(200, nil, "X-Bucket", fmt.Sprint("b", sent.Len()/changes))(req)
			})}
			for range 1000 {
				_ = fetch(t, rt, "https://api.test/a")
				time.Sleep(20 * time.Second)
			}
			if err := sent.Check(2, 2./3600, 0); err != nil || sent.Len() < 10 {
				t.Errorf("%s: %d sent, %v", name, sent.Len(), err)
			}
		})
	}
}

// If an answer shows that a route belongs to another bucket, every limiter of the route hears
// of that answer.
func TestTheAnswerThatNamesABucketReachesItsLimiters(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"refused":         {[]string{"Retry-After", "600"}, 429},
		"nothing remains": {[]string{"X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset-After", "600"}, 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := hourly()
			d.Limiters.New = func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, outbound.PerSecond(10)) }
			n := 0
			rt := &Transport{For: d.For, OnResponse: d.Learn, Profile: profile.Discord, Base: base(func(req *http.Request) (*http.Response, error) {
				n++
				if req.URL.Path == "/known" {
					return answer(200, nil, "X-Bucket", "ab")(req)
				}
				return answer(c.status, nil, append(c.header, "X-Bucket", "ab")...)(req)
			})}
			for _, path := range []string{"known", "new", "new", "known", "new"} {
				err := fetch(t, rt, "https://api.test/"+path)
				var full *outbound.ThrottledError
				if n == 2 && err != nil && (!errors.As(err, &full) || !full.Held || full.RetryAfter < 590*time.Second) {
					t.Errorf("%s: %s: %v", name, path, err)
				}
				time.Sleep(time.Second)
			}
			if n != 2 {
				t.Errorf("%s: %d went out, want 2", name, n)
			}
		})
	}
}

// A refusal that comes with another name holds its route all the same, also if the limiter of
// that name has no room and cannot hear of it.
func TestARefusalUnderAnotherNameHoldsTheRoute(t *testing.T) {
	for name, second := range map[string]string{"room": "new", "none": "full"} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := hourly()
			d.Limiters.New = func(key string) (outbound.Limiter, error) {
				if key == "api.test=full" {
					return outbound.NewBucket(key, outbound.PerMinute(1))
				}
				return outbound.NewBucket(key, outbound.PerSecond(10))
			}
			n := 0
			rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
				n++
				switch {
				case req.URL.Path == "/b":
					return answer(200, nil, "X-Bucket", "full")(req)
				case n == 1:
					return answer(200, nil, "X-Bucket", "first")(req)
				}
				return answer(429, nil, "Retry-After", "600", "X-Bucket", second)(req)
			})}
			for _, path := range []string{"a", "b", "b"} {
				if err := fetch(t, rt, "https://api.test/"+path); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
			for range 500 {
				_ = fetch(t, rt, "https://api.test/a")
				time.Sleep(time.Second)
			}
			if n != 4 {
				t.Errorf("%s: %d went out, want 4", name, n)
			}
		})
	}
}

// Discord counts each token, and each channel, apart, although their buckets have the same
// names.
func TestLimitsThatTheAPICountsApartAreHeldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		d.Limiters.New = func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, outbound.PerSecond(10)) }
		d.Route = func(req *http.Request) string { return req.URL.Path }
		d.Scope = func(req *http.Request) string { return req.Header.Get("Authorization") + req.URL.RawQuery }
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Authorization") == "secret" && req.URL.RawQuery == "1" {
				return answer(429, nil, "Retry-After", "600", "X-Bucket", "ab")(req)
			}
			return answer(200, nil, "X-Bucket", "ab")(req)
		})}
		for range 2 {
			for _, token := range []string{"secret", "other", ""} {
				for _, channel := range []string{"1", "2", ""} {
					req, err := http.NewRequest(http.MethodGet, "https://api.test/messages?"+channel, nil)
					if err != nil {
						t.Fatal(err)
					}
					if token != "" {
						req.Header.Set("Authorization", token)
					}
					resp, err := rt.RoundTrip(req)
					if err == nil {
						closeResponse(resp)
					} else if token != "secret" || channel != "1" {
						t.Errorf("token %q, channel %q: %v", token, channel, err)
					}
				}
			}
			time.Sleep(time.Second)
		}
		req, _ := http.NewRequest(http.MethodGet, "https://api.test/messages?1", nil)
		req.Header.Set("Authorization", "secret")
		_, err := rt.RoundTrip(req)
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || !full.Held || strings.Contains(err.Error(), "secret") {
			t.Errorf("the channel that was refused: %v", err)
		}
	})
}

// A redirect leads to a host that names the bucket of another, and refuses.
func TestNoHostTouchesTheLimitersOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		client := &http.Client{Transport: &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			switch {
			case req.URL.Host == "evil.test":
				return answer(429, nil, "X-Bucket", "ab", "Retry-After", "3000", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3000")(req)
			case req.URL.Path == "/away":
				return answer(302, nil, "X-Bucket", "away", "Location", "https://evil.test/a")(req)
			}
			return answer(200, nil, "X-Bucket", "ab")(req)
		})}}
		follow := func(url string) error {
			resp, err := client.Get(url)
			if err == nil {
				closeResponse(resp)
			}
			return err
		}
		if err := follow("https://api.test/a"); err != nil { // after this its name is known
			t.Fatal(err)
		}
		if err := follow("https://api.test/away"); err != nil {
			t.Fatal(err)
		}
		if err := follow("https://api.test/a"); err != nil {
			t.Errorf("held by another host: %v", err)
		}
		_ = follow("https://evil.test/a") // its own name is known, and now refused
		var full *outbound.ThrottledError
		if err := follow("https://evil.test/a"); !errors.As(err, &full) || !full.Held || full.Key != "evil.test a" {
			t.Errorf("the host that refused: %v", err)
		}
	})
}

func TestTheAPIMayChangeItsMindAndFloodWithNames(t *testing.T) {
	d, _ := hourly()
	d.MaxRoutes = 3
	d.Limiters.New = func(string) (outbound.Limiter, error) { return outbound.Unlimited{}, nil }
	learn := func(route, name string) {
		req, _ := http.NewRequest(http.MethodGet, "https://api.test/"+route, nil)
		d.Learn(&http.Response{Header: http.Header{"X-Bucket": {name}}, Request: req}, nil)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 200 {
				route := fmt.Sprint(i % 20)
				learn(route, fmt.Sprint(worker, i))
				req, _ := http.NewRequest(http.MethodGet, "https://api.test/"+route, nil)
				_ = d.For(req)
			}
		})
	}
	wg.Wait()
	if n := len(d.names); n != 3 {
		t.Errorf("%d routes are remembered, want 3", n)
	}
	for known := range d.names {
		learn(strings.TrimPrefix(known, "api.test "), "changed")
		if d.names[known] != "changed" {
			t.Errorf("%q has the name %q", known, d.names[known])
		}
	}
	d.Learn(&http.Response{Header: http.Header{"X-Bucket": {"x"}}}, nil) // fakes leave the Request out
}

// A refusal of Discord is about the whole account, about this route, or about something
// shared.
func TestEachOfTwoTransportsInARowAppliesItsOwnScope(t *testing.T) {
	for scope, want := range map[string]struct{ global, route bool }{
		"global": {true, false}, "user": {false, true}, "shared": {false, false}, "": {false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			global := outbound.Must(outbound.NewBucket("global", outbound.Limit{Capacity: 50, LeakRate: 50}))
			route := outbound.Must(outbound.NewBucket("route", outbound.Limit{Capacity: 5, LeakRate: 1}))
			is := func(scope string) bool { return scope == "global" }
			h := []string{"Retry-After", "10", "X-RateLimit-Scope", scope}
			rt := &Transport{Limiter: global, Profile: profile.Discord, OnSignal: OnlyScope(is),
				Base: &Transport{Limiter: route, Profile: profile.Discord, Judge: JudgeAlways, OnSignal: OnlyScope(func(s string) bool { return !is(s) }),
					Base: answer(429, nil, h...)}}
			trip(t, rt)
			for b, held := range map[*outbound.Bucket]bool{global: want.global, route: want.route} {
				s, err := b.State(t.Context())
				if err != nil || (s.HeldFor > 0) != held {
					t.Errorf("scope %q: the bucket %s is held for %v, %v", scope, b.Key(), s.HeldFor, err)
				}
			}
		})
	}
}

// A refusal of another scope is no success of this limiter's. Its hold was too short, so its
// next refusal doubles it.
func TestARefusalOfAnotherScopeIsNoSuccess(t *testing.T) {
	for name, between := range map[string]*Transport{
		"zeroed":        {Base: answer(429, nil), OnSignal: func(_ *http.Response, s *profile.Signal) { *s = profile.Signal{} }},
		"cached 429":    {Base: answer(429, nil, "Age", "3")},
		"cached 200":    {Base: answer(200, nil, "X-From-Cache", "1")},
		"lock":          {Base: answer(429, nil), OnSignal: func(_ *http.Response, s *profile.Signal) { s.Reason = profile.Lock }},
		"overload":      {Base: answer(529, nil)},
		"zeroed, slow":  {Base: answer(429, nil), OnSignal: func(_ *http.Response, s *profile.Signal) { *s = profile.Signal{} }, OnResponse: func(*http.Response, *outbound.Permit) {}},
		"overload, too": {Base: answer(529, nil), OnResponse: func(*http.Response, *outbound.Permit) {}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 100}))
			held := func() time.Duration {
				trip(t, &Transport{Base: answer(429, nil), Limiter: b})
				s, err := b.State(t.Context())
				if err != nil || s.Speed != 1 {
					t.Fatalf("%s: speed %v, %v", name, s.Speed, err)
				}
				return s.HeldFor
			}
			time.Sleep(held() + time.Minute)
			between.Limiter = b
			trip(t, between)
			if s, _ := b.State(t.Context()); s.HeldFor > 0 || s.Speed != 1 {
				t.Errorf("%s: held for %v at speed %v", name, s.HeldFor, s.Speed)
			}
			if d := held(); d < 2*time.Second || d > 2500*time.Millisecond {
				t.Errorf("%s: then held for %v, want 2s, and up to a quarter more", name, d)
			}
		})
	}
}
