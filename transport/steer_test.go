package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/transport/profile"
)

func TestTheCallHearsWhatTheAPISays(t *testing.T) {
	for _, c := range []struct {
		status int
		header []string
		want   string
	}{
		{200, nil, ""},
		{200, []string{"Retry-After", "10"}, ""}, // a hint for polling
		{302, []string{"Retry-After", "10"}, ""},
		{403, []string{"Retry-After", "10"}, ""}, // OnResponse judges it
		{429, nil, "refused 0s, "},
		{429, []string{"Retry-After", "10"}, "refused 10s, "},
		{429, []string{"Retry-After", "0"}, "refused 0s, "},
		{429, []string{"Retry-After", "-9"}, "refused 0s, "},
		{429, []string{"Retry-After", "7200"}, "refused 1h0m0s, "},
		{429, []string{"Retry-After", "99999999999"}, "refused 1h0m0s, "},
		{503, nil, "none, "},                                     // nor that the pace is right
		{503, []string{"Retry-After", "10"}, "hold 10s, none, "}, // this does not show that calls are too fast
		{503, []string{"Retry-After", "0"}, "none, "},
		{503, []string{"Retry-After", "soon"}, "none, "},
		{500, []string{"Retry-After", "10"}, "none, "},
		{502, nil, "none, "},
		{499, nil, ""},
		// Out of a cache.
		{429, []string{"Retry-After", "10", "Age", "3"}, "none, "},
		{503, []string{"Retry-After", "10", "X-From-Cache", "1"}, "none, "},
		{429, []string{"Retry-After", "10", "Age", "0"}, "refused 10s, "},
		{429, []string{"Retry-After", "10", "Age", "-3"}, "refused 10s, "},
		{429, []string{"Retry-After", "10", "Age", "old"}, "refused 10s, "},
	} {
		for _, watch := range []bool{false, true} {
			r := new(recorder)
			rt := &Transport{Base: answer(c.status, nil, c.header...), Limiter: r}
			if watch {
				rt.OnResponse = func(*http.Response, *outbound.Permit) {}
			}
			trip(t, rt)
			if want, got := "acquire 1, "+c.want+"done", r.heard(); got != want {
				t.Errorf("%d %q: heard %q, want %q", c.status, c.header, got, want)
			}
		}
	}
}

// A load balancer that answers for a server which is down has not let the call through.
func TestAServerThatIsDownEndsNoRowOfRefusals(t *testing.T) {
	for between, want := range map[int][3]time.Duration{
		200: {time.Second, time.Second, time.Second}, 404: {time.Second, time.Second, time.Second},
		500: {time.Second, 2 * time.Second, 4 * time.Second}, 502: {time.Second, 2 * time.Second, 4 * time.Second}, 503: {time.Second, 2 * time.Second, 4 * time.Second},
	} {
		for _, followed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 100}))
				var onResponse func(*http.Response, *outbound.Permit)
				if followed {
					onResponse = func(*http.Response, *outbound.Permit) {}
				}
				for i, want := range want {
					trip(t, &Transport{Base: answer(429, nil), Limiter: b, OnResponse: onResponse})
					if held := stateOf(t, b).HeldFor; held < want || held >= want*3/2 { // a doubled hold is up to a quarter longer
						t.Errorf("%d between (followed: %v): refusal %d holds for %v, want %v", between, followed, i+1, held, want)
					}
					time.Sleep(time.Minute)
					trip(t, &Transport{Base: answer(between, nil), Limiter: b, OnResponse: onResponse})
					time.Sleep(time.Second)
				}
			})
		}
	}
}

func TestMaxHoldBoundsWhatAResponseCanCause(t *testing.T) {
	for maxHold, want := range map[time.Duration]time.Duration{
		0: time.Hour, -time.Second: time.Hour, time.Minute: time.Minute, 3 * time.Hour: 2 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(10)))
			trip(t, &Transport{Base: answer(429, nil, "Retry-After", "7200"), Limiter: b, MaxHold: maxHold})
			var full *outbound.ThrottledError
			if _, err := b.Acquire(t.Context(), outbound.Cost{1}); !errors.As(err, &full) || !full.Held || full.RetryAfter.Round(time.Second) != want {
				t.Errorf("MaxHold %v: %v, want a hold of %v", maxHold, err, want)
			}
		})
	}
}

func TestRefusalByTheAPIHoldsAllWhoShareTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 10}))
		ours := &Transport{Base: answer(200, nil), Limiter: b}
		trip(t, ours)
		trip(t, &Transport{Base: answer(429, nil, "Retry-After", "30"), Limiter: b})
		_, err := ours.RoundTrip(newRequest(t, nil))
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || !full.Held || full.RetryAfter < 30*time.Second {
			t.Fatalf("%v, want a hold of 30s", err)
		}
		time.Sleep(full.RetryAfter)
		trip(t, ours)
	})
}

// The bucket holds twice as long for the second refusal in a row, unless a call has succeeded
// between them.
func TestAResponseThatIsNoRefusalIsASuccessAndAnErrorIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		between base
		want    time.Duration
	}{
		"answered":   {answer(200, nil), time.Second},
		"not there":  {answer(404, nil), time.Second},
		"not at all": {func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") }, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 100}))
			held := func() time.Duration {
				trip(t, &Transport{Base: answer(429, nil), Limiter: b})
				var full *outbound.ThrottledError
				if _, err := b.Acquire(t.Context(), outbound.Cost{1}); !errors.As(err, &full) || !full.Held {
					t.Fatalf("%s: %v", name, err)
				}
				return full.RetryAfter
			}
			time.Sleep(held() + time.Minute)
			_, _ = (&Transport{Base: c.between, Limiter: b}).RoundTrip(newRequest(t, nil))
			if got := held().Round(100 * time.Millisecond); got < c.want || got > c.want*5/4 {
				t.Errorf("%s: then held for %v, want %v, and up to a quarter more", name, got, c.want)
			}
		})
	}
}

// However often the API refuses, calls go to it again when MaxHold is over, whichever way a
// refusal takes to the bucket.
func TestRefusalsInARowDoubleUpToMaxHold(t *testing.T) {
	one, two := outbound.PerSecond(10), outbound.PerMinute(6000).Of(0, "minute")
	for name, c := range map[string]struct {
		limits []outbound.Limit
		header []string
		rt     Transport
		want   string
	}{
		"no hint":                {limits: []outbound.Limit{one}, want: "[0 1 3 7 12 17 22 27]"},
		"no hint, two limits":    {limits: []outbound.Limit{one, two}, want: "[0 1 3 7 12 17 22 27]"},
		"an hour":                {limits: []outbound.Limit{one}, header: []string{"Retry-After", "3600"}, want: "[0 5 10 15 20 25]"},
		"an hour, OnResponse":    {limits: []outbound.Limit{one}, header: []string{"Retry-After", "3600"}, rt: Transport{OnResponse: func(*http.Response, *outbound.Permit) {}}, want: "[0 5 10 15 20 25]"},
		"an hour, by the permit": {limits: []outbound.Limit{one, two}, rt: Transport{OnResponse: func(_ *http.Response, p *outbound.Permit) { p.Refused(time.Hour) }}, want: "[0 5 10 15 20 25]"},
		"observed":               {limits: []outbound.Limit{one}, rt: Transport{Limiter: outbound.Unlimited{}}, want: "[0 1 3 7 12 17 22 27]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var calls []float64
			rt := c.rt
			rt.MaxHold = 5 * time.Second
			rt.Base = base(func(req *http.Request) (*http.Response, error) {
				calls = append(calls, time.Since(begin).Seconds())
				return answer(429, nil, c.header...)(req)
			})
			// In a store no hold is longer by chance.
			b := outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "api", c.limits...))
			if rt.Limiter == nil {
				rt.Limiter = b
			} else {
				rt.Limiter = outbound.Observe(b, "api", func(context.Context, outbound.Event) {})
			}
			for time.Since(begin) < 30*time.Second {
				_ = fetch(t, &rt, "https://api.test/")
				time.Sleep(250 * time.Millisecond)
			}
			if got := fmt.Sprint(calls); got != c.want {
				t.Errorf("%s: calls at %v, want %v", name, got, c.want)
			}
		})
	}
}

func TestABucketsObserverHearsOfAHoldByWhatRemainsAbove0(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 10, LeakRate: 10}))
		var held []time.Duration
		defer b.Observe(func(e outbound.Event) {
			if e.Kind == outbound.EventHeld {
				held = append(held, e.Hold)
			}
		})()
		header := []string{"X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "4", "X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)}
		rt := &Transport{Limiter: b, Profile: profile.GitHub, Base: base(func(req *http.Request) (*http.Response, error) {
			for range 4 { // these leave while the API answers this one
				if _, err := b.Acquire(req.Context(), outbound.Cost{1}); err != nil {
					return nil, err
				}
			}
			return answer(200, nil, header...)(req)
		})}
		trip(t, rt)
		s, err := b.State(t.Context())
		synctest.Wait()
		if err != nil || s.HeldFor < time.Hour || len(held) != 1 || held[0] != s.HeldFor {
			t.Errorf("held for %v, and the events tell of %v, %v", s.HeldFor, held, err)
		}
	})
}
