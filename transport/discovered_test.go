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
	"github.com/dripfeed/dripfeed/transport/profile"
)

// routed is a Discovered with one call per hour for each limiter, and the keys of
// those that were made.
func routed() (d *Discovered, keys func() []string) {
	var mu sync.Mutex
	var all []string
	limiters := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, key)
		return outbound.NewBucket(key, outbound.PerHour(2))
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
		d, keys := routed()
		names := map[string]string{"/a": "ab", "/b": "ab", "/c": "c", "/long": strings.Repeat("x", 129)}
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			return answer(200, nil, "X-Bucket", names[req.URL.Path])(req)
		})}
		for _, c := range []struct {
			path string
			room bool
		}{
			{"a", true}, {"b", true}, // each by its route
			{"a", true},              // the bucket's
			{"b", false},             // and it is shared
			{"c", true}, {"c", true}, // by its route, by its name
			{"long", true}, {"long", false}, // not believed
			{"other", true}, {"other", false}, // not named
			{"", true}, {"", true}, {"", true}, // not a route
		} {
			err := fetch(t, rt, "https://api.test/"+c.path)
			if room := err == nil; room != c.room || err != nil && !errors.Is(err, outbound.ErrThrottled) {
				t.Errorf("%q: %v, want room: %v", c.path, err, c.room)
			}
		}
		want := []string{"api.test a", "api.test b", "api.test c", "api.test long", "api.test other", "api.test=ab", "api.test=c"}
		if got := keys(); !slices.Equal(got, want) {
			t.Errorf("limiters %q, want %q", got, want)
		}
	})
}

// A host to which a redirect leads names the bucket of another, and refuses.
func TestNoHostTouchesTheLimitersOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := routed()
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
		if err := follow("https://api.test/a"); err != nil { // so that its name is known
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
		if err := follow("https://evil.test/a"); !errors.As(err, &full) || !full.Held || full.Key != "evil.test=ab" {
			t.Errorf("the host that refused: %v", err)
		}
	})
}

func TestTheAPIMayChangeItsMindAndFloodWithNames(t *testing.T) {
	d, _ := routed()
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
	d.Learn(&http.Response{Header: http.Header{"X-Bucket": {"x"}}}, nil) // as fakes have it
}

// Discord: a refusal is everybody's, this route's or that of something shared.
func TestEachOfTwoTransportsInARowHeedsItsOwnScope(t *testing.T) {
	for scope, want := range map[string]struct{ global, route bool }{
		"global": {true, false}, "user": {false, true}, "shared": {false, true}, "": {false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			global := outbound.Must(outbound.NewBucket("global", outbound.Limit{Capacity: 50, LeakRate: 50}))
			route := outbound.Must(outbound.NewBucket("route", outbound.Limit{Capacity: 5, LeakRate: 1}))
			is := func(scope string) bool { return scope == "global" }
			h := []string{"Retry-After", "10", "X-RateLimit-Scope", scope}
			rt := &Transport{Limiter: global, Profile: profile.Discord, OnSignal: OnlyScope(is),
				Base: &Transport{Limiter: route, Profile: profile.Discord, OnSignal: OnlyScope(func(s string) bool { return !is(s) }),
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

// A refusal of another scope is no success of this limiter's: its hold, too short as
// it was, is doubled by its next refusal.
func TestARefusalThatIsNotHeededIsNoSuccess(t *testing.T) {
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
			if d := held().Round(100 * time.Millisecond); d != 2*time.Second {
				t.Errorf("%s: then held for %v, want 2s", name, d)
			}
		})
	}
}
