package transport_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// hourly is a limit of two calls an hour.
var hourly = outbound.Limit{Capacity: 2, LeakRate: 2. / 3600}

// discover returns a Discovered whose limiters have this limit, a transport that uses it, and the
// buckets that it has made.
func discover(limit outbound.Limit, api roundTripper) (*transport.Discovered, *transport.Transport, map[string]*outbound.Bucket) {
	made := map[string]*outbound.Bucket{}
	d := &transport.Discovered{
		Route: func(req *http.Request) string { return strings.TrimPrefix(req.URL.Path, "/") },
		Name:  transport.HeaderName("x-bucket"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			made[key] = outbound.Must(outbound.NewBucket(key, limit))
			return made[key], nil
		}},
	}
	return d, &transport.Transport{For: d.For, OnResponse: d.Learn, Profile: profile.Discord, Base: api}, made
}

// wantFull expects that a request for the path is admitted, or that the limiter of a key refuses it.
func wantFull(t *testing.T, rt http.RoundTripper, path, key string, held bool) {
	t.Helper()
	err := fetch(t, rt, "https://api.test/"+path)
	full, ok := errors.AsType[*outbound.ThrottledError](err)
	errorIf(t, key == "" && err != nil || key != "" && (!ok || full.Key != key || full.Held != held),
		"%q: %v, want no capacity in %q, held: %v", path, err, key, held)
}

// A request is admitted by its route's limiter and by that of the bucket that the API names.
func TestDiscovered_EachBucketHasALimiter(t *testing.T) {
	bubble(t, "Routes that the API counts in one bucket share that bucket's limiter", func(t *testing.T) {
		names := map[string]string{"/a": "ab", "/b": "ab", "/d": "ab", "/c": "c", "/long": strings.Repeat("x", 129)}
		_, rt, made := discover(hourly, func(req *http.Request) (*http.Response, error) {
			return answer(200, nil, "X-Bucket", names[req.URL.Path])(req)
		})
		for _, c := range []struct{ path, full string }{
			{"a", ""}, {"b", ""}, // each by its route
			{"a", ""}, {"b", ""}, // and by the bucket's name
			{"a", "api.test a"},
			{"d", ""}, {"d", "api.test=ab"}, // the name's limiter is shared
			{"c", ""}, {"c", ""}, {"c", "api.test c"},
			{"long", ""}, {"long", ""}, {"long", "api.test long"}, // the name is too long
			{"other", ""}, {"other", ""}, {"other", "api.test other"}, // the API returns no name
			{"", ""}, {"", ""}, {"", ""}, // Route returns none
		} {
			wantFull(t, rt, c.path, c.full, false)
		}
		want := []string{"api.test a", "api.test b", "api.test c", "api.test d", "api.test long", "api.test other", "api.test=ab", "api.test=c"}
		got := slices.Sorted(maps.Keys(made))
		errorIf(t, !slices.Equal(got, want), "limiters %q, want %q", got, want)
	})
	bubble(t, "A request that the name's limiter refuses costs the route's limiter nothing", func(t *testing.T) {
		_, rt, made := discover(hourly, answer(200, nil, "X-Bucket", "ab"))
		for _, path := range []string{"a", "b", "c", "b", "c"} {
			wantFull(t, rt, path, "", false)
		}
		for range 5 {
			wantFull(t, rt, "a", "api.test=ab", false)
		}
		wantCharged(t, made["api.test a"], 1)
	})
	bubble(t, "Discord counts each token, and each channel, separately, although their buckets have the same names. No error has the token", func(t *testing.T) {
		d, api, _ := discover(outbound.PerSecond(10), func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Authorization") == "Bearer secret" && req.URL.RawQuery == "1" {
				return answer(429, nil, "Retry-After", "600", "X-Bucket", "ab")(req)
			}
			return answer(200, nil, "X-Bucket", "ab")(req)
		})
		d.Scope = func(req *http.Request) string { return req.Header.Get("Authorization") + req.URL.RawQuery }
		for round := range 3 {
			for _, token := range []string{"secret", "other", ""} {
				for _, channel := range []string{"1", "2", ""} {
					err := fetch(t, withKey{token, api}, "https://api.test/messages?"+channel)
					full, ok := errors.AsType[*outbound.ThrottledError](err)
					switch held := round > 0 && token == "secret" && channel == "1"; {
					case held && (!ok || !full.Held || strings.Contains(err.Error(), "secret")):
						t.Errorf("the channel that was refused: %v", err)
					case !held && err != nil:
						t.Errorf("token %q, channel %q: %v", token, channel, err)
					}
				}
			}
			time.Sleep(time.Second)
		}
	})
	bubble(t, "A host that a redirect leads to adjusts its own limiters only, whatever name it returns", func(t *testing.T) {
		_, rt, _ := discover(hourly, func(req *http.Request) (*http.Response, error) {
			switch {
			case req.URL.Host == "evil.test":
				return answer(429, nil, "X-Bucket", "ab", "Retry-After", "3000", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3000")(req)
			case req.URL.Path == "/away":
				return answer(302, nil, "X-Bucket", "away", "Location", "https://evil.test/a")(req)
			}
			return answer(200, nil, "X-Bucket", "ab")(req)
		})
		wantFull(t, rt, "a", "", false)
		wantFull(t, rt, "away", "", false)
		wantFull(t, rt, "a", "", false)
		_ = fetch(t, rt, "https://evil.test/a") // its own name is known, and now refused
		err := fetch(t, rt, "https://evil.test/a")
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		errorIf(t, !ok || !full.Held || full.Key != "evil.test a", "the host that refused: %v", err)
	})
	t.Run("A call that has ended can be settled, and is charged to no further name", func(t *testing.T) {
		_, rt, made := discover(slow, answer(200, nil, "X-Bucket", "ab"))
		ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
		must(getURL(ctx, rt, "https://api.test/a"))
		permit.Settle(outbound.Cost{5})
		wantCharged(t, made["api.test a"], 5)
		permit.Hold(time.Second)
		errorIf(t, made["api.test=ab"] != nil, "a call that has ended was charged to the name of its response")
	})
}

// Whatever names the API has for a route, its requests are no faster than without.
func TestDiscovered_NoNameMakesARouteFaster(t *testing.T) {
	for name, changes := range map[string]int{"never": 1 << 30, "each time": 1, "now and then": 3} {
		synctest.Test(t, func(t *testing.T) {
			var sent outboundtest.History
			_, rt, _ := discover(hourly, func(req *http.Request) (*http.Response, error) {
				sent.Add(time.Now(), 1)
				return answer(200, nil, "X-Bucket", fmt.Sprint("b", sent.Len()/changes))(req)
			})
			for range 1000 {
				_ = fetch(t, rt, "https://api.test/a")
				time.Sleep(20 * time.Second)
			}
			err := sent.Check(2, 2./3600, 0)
			errorIf(t, err != nil || sent.Len() < 10, "%s: %d sent, %v", name, sent.Len(), err)
		})
	}
}

// If a response shows that a route belongs to another bucket, it adjusts every limiter of the route.
func TestDiscovered_ResponseThatNamesABucketAdjustsIt(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"refused":         {[]string{"Retry-After", "600"}, 429},
		"nothing remains": {[]string{"X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset-After", "600"}, 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			_, rt, made := discover(outbound.PerSecond(10), func(req *http.Request) (*http.Response, error) {
				n++
				if req.URL.Path == "/known" {
					return answer(200, nil, "X-Bucket", "ab")(req)
				}
				return answer(c.status, nil, append(c.header, "X-Bucket", "ab")...)(req)
			})
			for _, c := range []struct{ path, full string }{
				{"known", ""}, {"new", ""}, {"new", "api.test new"}, {"known", "api.test=ab"},
			} {
				wantFull(t, rt, c.path, c.full, c.full != "")
				time.Sleep(time.Second)
			}
			if held := stateOf(t, made["api.test=ab"]).HeldFor; n != 2 || held < 590*time.Second {
				t.Errorf("%s: %d were sent, want 2, and the name's limiter is held for %v", name, n, held)
			}
		})
	}
}

// A refusal that comes with another name holds its route all the same, also if the limiter of that
// name has no capacity.
func TestDiscovered_RefusalUnderAnotherNameHoldsRoute(t *testing.T) {
	for _, second := range []string{"new", "full"} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			d, rt, _ := discover(outbound.PerSecond(10), func(req *http.Request) (*http.Response, error) {
				n++
				switch {
				case req.URL.Path == "/b":
					return answer(200, nil, "X-Bucket", "full")(req)
				case n == 1:
					return answer(200, nil, "X-Bucket", "first")(req)
				}
				return answer(429, nil, "Retry-After", "600", "X-Bucket", second)(req)
			})
			others := d.Limiters.New
			d.Limiters.New = func(key string) (outbound.Limiter, error) {
				if key == "api.test=full" {
					return outbound.NewBucket(key, outbound.PerMinute(1))
				}
				return others(key)
			}
			for _, path := range []string{"a", "b", "b"} {
				wantFull(t, rt, path, "", false)
				time.Sleep(time.Second)
			}
			for range 500 {
				_ = fetch(t, rt, "https://api.test/a")
				time.Sleep(time.Second)
			}
			errorIf(t, n != 4, "%s: %d were sent, want 4", second, n)
		})
	}
}

// A Discovered remembers MaxRoutes routes, whose names may change, and is safe for concurrent use.
func TestDiscovered_RemembersMaxRoutes(t *testing.T) {
	d, _, made := discover(hourly, nil)
	d.MaxRoutes = 3
	ask := func(route int, name string) outbound.Limiter {
		req, _ := http.NewRequest(http.MethodGet, fmt.Sprint("https://api.test/", route), nil)
		d.Learn(&http.Response{Header: http.Header{"X-Bucket": {name}}, Request: req}, nil)
		return d.For(req)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 200 {
				ask(i%20, fmt.Sprint(worker, i))
			}
		})
	}
	wg.Wait()
	for route := range 20 {
		_, err := ask(route, fmt.Sprint("changed", route)).Acquire(t.Context(), outbound.Cost{1})
		check(t, err)
	}
	maps.DeleteFunc(made, func(key string, _ *outbound.Bucket) bool { return !strings.Contains(key, "=changed") })
	errorIf(t, len(made) != 3, "the names of %d routes are remembered, want 3", len(made))
	d.Learn(&http.Response{Header: http.Header{"X-Bucket": {"x"}}}, nil) // fakes leave the Request out
}

// If all limiters are taken, the host has one.
func TestDiscovered_FullLeavesTheHostsLimiter(t *testing.T) {
	bubble(t, "A host that takes all limiters, and has refused a call of each, leaves every other host one limiter: for the routes and names that have none of their own yet", func(t *testing.T) {
		// Responses adjust it as any other.
		status, name := 200, ""
		d, rt, _ := discover(hourly, func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "evil.test" {
				return answer(429, nil, "Retry-After", "3000", "X-Bucket", req.URL.Path)(req)
			}
			return answer(status, nil, "Retry-After", "600", "X-Bucket", name)(req)
		})
		d.Limiters.Max = 10
		wantFull(t, rt, "old", "", false)
		for i := range 20 {
			_ = fetch(t, rt, fmt.Sprintf("https://evil.test/%d", i))
		}
		n := d.Limiters.Len()
		fatalIf(t, n != 10, "%d limiters, want all 10 to be taken", n)
		name = "ab"
		wantFull(t, rt, "old", "", false) // this route has a limiter of its own, and now a name that has none
		wantFull(t, rt, "new", "", false)
		wantFull(t, rt, "newer", "", false)
		wantFull(t, rt, "newer", "api.test", false) // two calls an hour, as every limiter
		time.Sleep(30 * time.Minute)
		wantFull(t, rt, "old", "", false) // this call is charged to both
		wantFull(t, rt, "new", "api.test", false)
		time.Sleep(30 * time.Minute)
		status = 429
		wantFull(t, rt, "new", "", false)
		wantFull(t, rt, "old", "api.test", true)
		wantFull(t, rt, "newer", "api.test", true)
		time.Sleep(3 * time.Hour) // all limiters are idle and forgotten
		status = 200
		wantFull(t, rt, "new", "", false)
		wantFull(t, rt, "newer", "", false)
		wantFull(t, rt, "newer", "api.test=ab", false)
	})
	bubble(t, "The host's limiter has the Label of its key, and counts a request that finds no other limiter once", func(t *testing.T) {
		status := 200
		d, rt, made := discover(outbound.Limit{Capacity: 3, LeakRate: 3. / 3600}, func(req *http.Request) (*http.Response, error) {
			return answer(status, nil, "X-Bucket", "b"+req.URL.Path, "Retry-After", "600")(req)
		})
		d.Limiters.Max = 1
		d.Limiters.Label = func(key string) string { return "label of " + key }
		for _, path := range []string{"a", "b", "b"} { // a takes the only limiter
			wantFull(t, rt, path, "", false)
		}
		wantCharged(t, made["api.test"], 2)
		status = 429
		wantFull(t, rt, "b", "", false)
		wantFull(t, rt, "b", "label of api.test", true)
	})
}

// A route without a limiter of its own keeps to its name's, which a refusal holds, and the host's not.
func TestDiscovered_FullKeepsToTheNamesLimiter(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			status := 200
			d, rt, made := discover(outbound.Limit{Capacity: 2, LeakRate: 1e-6}, func(req *http.Request) (*http.Response, error) {
				return answer(status, nil, "X-Bucket", "ab", "Retry-After", "600")(req)
			})
			d.Limiters.Max = 2
			small := d.Limiters.New
			d.Limiters.New = func(key string) (outbound.Limiter, error) {
				if key == "api.test" {
					made[key] = bucket(slow)
					return made[key], nil
				}
				return small(key)
			}
			wantFull(t, rt, "a", "", false)
			wantFull(t, rt, "a", "", false) // a and ab have the two limiters
			wantFull(t, rt, "b", "", false) // the response has the name
			if held {
				status = 429
			}
			wantFull(t, rt, "b", "", false) // the last that ab admits
			for range 3 {
				wantFull(t, rt, "b", "api.test=ab", held)
			}
			wantCharged(t, made["api.test"], 2) // what ab refuses costs nothing
			s := stateOf(t, made["api.test"])
			errorIf(t, s.HeldFor > 0, "the host is held for %v", s.HeldFor)
		})
	}
}

// A call without an answer is no success for any limiter of its route.
func TestDiscovered_FailureIsNoSuccess(t *testing.T) {
	for way, names := range map[string][2]string{"no name": {"", ""}, "a known name": {"ab", "cd"}} {
		for end, c := range map[string]struct {
			base   roundTripper
			slowed bool
		}{
			"error":   {failing(io.ErrUnexpectedEOF), false},
			"success": {answer(200, nil, "X-Bucket", names[0]), true},
		} {
			synctest.Test(t, func(t *testing.T) {
				_, rt, made := discover(outbound.Limit{Capacity: 10, LeakRate: 1}, nil)
				for _, base := range []roundTripper{
					answer(429, nil, "Retry-After", "1", "X-Bucket", names[0]), c.base,
					answer(429, nil, "Retry-After", "1", "X-Bucket", names[1]), // a new name: it adjusts the route's own limiter as well
				} {
					rt.Base = base
					_ = fetch(t, rt, "https://api.test/a")
					time.Sleep(time.Minute)
				}
				delete(made, "api.test=cd")
				errorIf(t, len(made) != 1 && names[0] == "" || len(made) != 2 && names[0] != "",
					"%s: limiters %v", way, made)
				for key, b := range made {
					if s := stateOf(t, b); (s.Speed < 1) != c.slowed {
						t.Errorf("%s, %s: %q has speed %v, slowed: want %v", way, end, key, s.Speed, c.slowed)
					}
				}
			})
		}
	}
}

// A refusal of Discord is about the whole account, about this route, or about something shared.
// OnlyScope applies it to the transport that it is meant for.
func TestOnlyScope_EachTransportAppliesItsOwn(t *testing.T) {
	for scope, want := range map[string]struct{ global, route bool }{
		"global": {true, false}, "user": {false, true}, "shared": {false, false}, "": {false, true},
	} {
		global, route := bucket(slow), bucket(slow)
		is := func(scope string) bool { return scope == "global" }
		trip(t, &transport.Transport{Limiter: global, Profile: profile.Discord, OnSignal: transport.OnlyScope(is),
			Base: &transport.Transport{Limiter: route, Profile: profile.Discord, Judge: transport.JudgeAlways,
				OnSignal: transport.OnlyScope(func(s string) bool { return !is(s) }),
				Base:     answer(429, nil, "Retry-After", "1000", "X-RateLimit-Scope", scope)}})
		for b, held := range map[*outbound.Bucket]bool{global: want.global, route: want.route} {
			s := stateOf(t, b)
			errorIf(t, (s.HeldFor > 0) != held, "scope %q: held for %v, want a hold: %v", scope, s.HeldFor, held)
		}
	}
}
