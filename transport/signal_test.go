package transport_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// callsAndTokens is a bucket of 100 calls and 1000 tokens; 10 calls and 100 tokens leak per second.
func callsAndTokens() *outbound.Bucket {
	return bucket(outbound.Limit{Capacity: 100, LeakRate: 10}, outbound.Limit{Capacity: 1000, LeakRate: 100, Unit: 1})
}

// succeeded returns a bucket that has met a refusal and then a success, so that the next refusal
// slows it.
func succeeded(t *testing.T) *outbound.Bucket {
	b := callsAndTokens()
	trip(t, &transport.Transport{Base: answer(429, nil), Limiter: b})
	time.Sleep(time.Minute)
	trip(t, &transport.Transport{Base: answer(200, nil), Limiter: b})
	return b
}

// followed returns a copy of a transport that follows its calls to their bodies' ends.
func followed(rt *transport.Transport) *transport.Transport {
	f := *rt
	f.OnResponse = ignore
	return &f
}

// A response holds the bucket for some time and for a reason, and may slow it. OnSignal sees what
// the API has asked for before MaxHold caps it.
func TestSignal_HoldsAndSlowsTheBucket(t *testing.T) {
	tokens := map[string]int{"requests": 0, "tokens": 1}
	const slower = 0.9
	for name, c := range map[string]struct {
		rt     transport.Transport
		status int
		body   string
		header []string
		held   time.Duration
		reason string
		speed  float64
	}{
		"no signal":                {status: 200, speed: 1},
		"429 with a time":          {status: 429, header: []string{"Retry-After", "7.5"}, held: 7500 * time.Millisecond, reason: "rate", speed: slower},
		"429 without":              {status: 429, held: time.Second, reason: "rate", speed: slower},
		"429 for a day":            {status: 429, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "600", "RateLimit-Policy", `"d";q=9;w=86400`, "RateLimit", `"d";r=0;t=600`}, held: 10 * time.Minute, reason: "quota", speed: slower},
		"too many in flight":       {rt: transport.Transport{Profile: profile.Stripe}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency"}, held: time.Second, reason: "concurrency", speed: 1},
		"too many, beyond MaxHold": {rt: transport.Transport{Profile: profile.Stripe, MaxHold: 50 * time.Millisecond}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency"}, held: 50 * time.Millisecond, reason: "concurrency", speed: 1},
		"429, beyond MaxHold":      {rt: transport.Transport{MaxHold: 50 * time.Millisecond}, status: 429, held: 50 * time.Millisecond, reason: "rate", speed: slower},
		"too many in flight, long": {rt: transport.Transport{Profile: profile.Stripe}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency", "Retry-After", "60"}, held: time.Second, reason: "concurrency", speed: 1},
		"a lock":                   {rt: transport.Transport{Profile: profile.Stripe}, status: 429, body: `{"error":{"code":"lock_timeout"}}`, header: []string{"Content-Type", "application/json", "Retry-After", "60"}, speed: 1},
		"an endpoint's own limit":  {rt: transport.Transport{Profile: profile.Zendesk}, status: 429, header: []string{"X-Rate-Limit-Remaining", "9", "Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41", "Retry-After", "41"}, speed: 1},
		"nothing for an endpoint":  {rt: transport.Transport{Profile: profile.Zendesk}, status: 200, header: []string{"X-Rate-Limit-Remaining", "9", "Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41"}, speed: 1},
		"nothing, for that alone":  {rt: transport.Transport{Profile: profile.Zendesk, Units: map[string]int{"tickets-index": 0}}, status: 200, header: []string{"Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41"}, held: 41 * time.Second, reason: "exhausted", speed: 1},
		"what others share":        {rt: transport.Transport{Profile: profile.Discord}, status: 429, header: []string{"X-RateLimit-Scope", "shared", "Retry-After", "41"}, speed: 1},
		"records locked":           {rt: transport.Transport{Profile: profile.HubSpot}, status: 423, speed: 1},
		"an overload":              {status: 529, header: []string{"Retry-After", "60"}, speed: 1},
		"down for a while":         {status: 503, header: []string{"Retry-After", "60"}, held: time.Minute, speed: 1},
		"GraphQL":                  {rt: transport.Transport{Profile: profile.ShopifyGraphQL}, status: 200, body: `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":100,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":0,"restoreRate":50}}}}`, header: []string{"Content-Type", "application/json"}, held: 2 * time.Second, reason: "rate", speed: slower},
		"refused inside a 200":     {rt: transport.Transport{Profile: profile.OpenAI}, status: 200, body: "event: error", header: []string{"Content-Type", "text/event-stream", "X-RateLimit-Limit-Tokens", "900", "X-RateLimit-Remaining-Tokens", "-27689", "X-RateLimit-Reset-Tokens", "64", "Retry-After", "4"}, held: 4 * time.Second, reason: "rate", speed: slower},
		"nothing remains":          {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, held: time.Minute, reason: "exhausted", speed: 1},
		"one remains":              {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "60"}, speed: 1},
		"nothing, until soon":      {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "2"}, speed: 1},
		"nothing, a little longer": {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3"}, held: 3 * time.Second, reason: "exhausted", speed: 1},
		"nothing, until a time":    {status: 200, header: []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1798761602"}, speed: 1},
		"nothing, until a later":   {status: 200, header: []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1798761603"}, held: 4 * time.Second, reason: "exhausted", speed: 1},
		"nothing, for how long?":   {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0"}, speed: 1},
		"nothing, but it leaks":    {rt: transport.Transport{Profile: profile.Shopify}, status: 200, header: []string{"X-Shopify-Shop-Api-Call-Limit", "40/40"}, speed: 1},
		"nothing, but it drips":    {rt: transport.Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Requests", "9", "X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "6m"}, speed: 1},
		"nothing, but it refills":  {rt: transport.Transport{Profile: profile.Linear}, status: 200, header: []string{"X-RateLimit-Requests-Limit", "9", "X-RateLimit-Requests-Remaining", "0", "X-RateLimit-Requests-Reset", "3600"}, speed: 1},
		"nothing, beyond MaxHold":  {rt: transport.Transport{MaxHold: time.Minute}, status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "600"}, held: time.Minute, reason: "exhausted", speed: 1},
		"no tokens, no Units":      {rt: transport.Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Tokens", "900", "X-RateLimit-Remaining-Tokens", "0", "X-RateLimit-Reset-Tokens", "6m"}, speed: 1},
		"unlimited tokens":         {rt: transport.Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Tokens", "-1", "X-RateLimit-Remaining-Tokens", "-1", "Retry-After", "4"}, speed: 1},
		"no unit of ours":          {rt: transport.Transport{Units: map[string]int{"requests": 4, "": -1}}, status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, speed: 1},
		"tokens by name":           {rt: transport.Transport{Units: map[string]int{"t": 1}}, status: 200, header: []string{"RateLimit-Policy", `"t";q=900;w=60`, "RateLimit", `"t";r=0;t=30`}, held: 30 * time.Second, reason: "exhausted", speed: 1},
		"of two, the other":        {rt: transport.Transport{Units: tokens}, status: 200, header: []string{"RateLimit-Policy", `"t";q=900;w=60`, "RateLimit", `"t";r=0;t=30`}, speed: 1},
		"out of a cache":           {status: 200, header: []string{"Age", "7", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, speed: 1},
		"a time by a slow clock":   {status: 429, header: []string{"Date", "Fri, 01 Jan 1999 00:00:00 GMT", "Retry-After", "Fri, 01 Jan 1999 00:00:30 GMT"}, held: 31 * time.Second, reason: "rate", speed: slower}, // the API cuts times to seconds
		"a time by a fast clock":   {status: 429, header: []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT", "Retry-After", "Fri, 01 Jan 2027 00:00:30 GMT"}, held: 31 * time.Second, reason: "rate", speed: slower},
		"429 for 20 h":             {status: 429, header: []string{"Retry-After", "72000"}, held: 20 * time.Hour, reason: "rate", speed: slower}, // spotipy#766
		"429 for 30 h":             {status: 429, header: []string{"Retry-After", "108000"}, held: 24 * time.Hour, reason: "rate", speed: slower},
		"429 for 30 h, negative":   {rt: transport.Transport{MaxHold: -time.Second}, status: 429, header: []string{"Retry-After", "108000"}, held: 24 * time.Hour, reason: "rate", speed: slower},
		"429 for 2 h, MaxHold 1 m": {rt: transport.Transport{MaxHold: time.Minute}, status: 429, header: []string{"Retry-After", "7200"}, held: time.Minute, reason: "rate", speed: slower},
		"429 for 2 h, MaxHold 3 h": {rt: transport.Transport{MaxHold: 3 * time.Hour}, status: 429, header: []string{"Retry-After", "7200"}, held: 2 * time.Hour, reason: "rate", speed: slower},
		"a hint for polling":       {status: 200, header: []string{"Retry-After", "10"}, speed: 1},
		"a redirect":               {status: 302, header: []string{"Retry-After", "10"}, speed: 1},
		"no permission":            {status: 403, header: []string{"Retry-After", "10"}, speed: 1},
		"an error":                 {status: 500, header: []string{"Retry-After", "10"}, speed: 1},
		"down":                     {status: 503, header: []string{"Retry-After", "0"}, speed: 1},
		"down for no time":         {status: 503, header: []string{"Retry-After", "soon"}, speed: 1},
		"429 out of a cache":       {status: 429, header: []string{"Retry-After", "10", "Age", "3"}, speed: 1},
		"503 out of a cache":       {status: 503, header: []string{"Retry-After", "10", "X-From-Cache", "1"}, speed: 1},
		"429 of age 0":             {status: 429, header: []string{"Retry-After", "10", "Age", "0"}, held: 10 * time.Second, reason: "rate", speed: slower},
	} {
		c.rt.Base = roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := answer(c.status, io.NopCloser(strings.NewReader(c.body)), c.header...)(req)
			resp.ContentLength = int64(len(c.body))
			return resp, err
		})
		var wait time.Duration
		c.rt.OnSignal = func(_ *http.Response, s *profile.Signal) { wait = s.Wait }
		for _, rt := range []*transport.Transport{&c.rt, followed(&c.rt)} {
			synctest.Test(t, func(t *testing.T) {
				b := succeeded(t)
				rt.Limiter = b
				resp := open(t, t.Context(), rt)
				text, _ := io.ReadAll(resp.Body)
				errorIf(t, string(text) != c.body, "%s: the body has become %q", name, text)
				resp.Body.Close()
				if s := stateOf(t, b); s.HeldFor != c.held || s.Reason != c.reason || s.Speed != c.speed {
					t.Errorf("%s (followed: %v): held for %v by %q at speed %v, want %v, %q, %v",
						name, rt.OnResponse != nil, s.HeldFor, s.Reason, s.Speed, c.held, c.reason, c.speed)
				}
				errorIf(t, slices.Equal(c.header, []string{"Retry-After", "7200"}) && wait != 2*time.Hour,
					"%s: OnSignal has seen %v", name, wait)
			})
		}
	}
}

// Whatever a response claims, it holds the bucket for MaxHold at most and makes it no faster.
func TestSignal_HostileValuesHoldForMaxHoldAtMost(t *testing.T) {
	try := func(status int, header ...string) {
		synctest.Test(t, func(t *testing.T) {
			b := callsAndTokens()
			trip(t, &transport.Transport{Base: answer(200, nil), Limiter: b})
			var seen time.Duration
			trip(t, &transport.Transport{Base: answer(status, nil, header...), Limiter: b, MaxHold: 10 * time.Minute,
				OnSignal: func(_ *http.Response, s *profile.Signal) { seen = s.Wait }})
			s := stateOf(t, b)
			if s.HeldFor < 0 || s.HeldFor > 10*time.Minute || s.Speed > 1 ||
				seen < 0 || seen > 0 && seen < s.HeldFor && status != 429 || status == 429 && s.HeldFor == 0 && header[0] != "Age" {
				t.Errorf("%d, %.60q: held for %v at speed %v, and OnSignal has seen %v", status, header, s.HeldFor, s.Speed, seen)
			}
			time.Sleep(10*time.Minute + time.Second)
			trip(t, &transport.Transport{Base: answer(200, nil), Limiter: b})
		})
	}
	values := []string{"0", "-1", "-0", "1e10", "10000000000", "9223372037", "9223372036854775807", "99999999999999999999", "NaN", "Inf", "+5", "0x7f", "1_0", "",
		"Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "2038-01-19T03:14:08Z", "1999999999", "1999999999999", "1h", "-1h", "∞",
		strings.Repeat("9", 1<<20), strings.Repeat(" ", 4096) + "1"}
	for _, status := range []int{200, 403, 429, 503, 529} {
		for _, value := range values {
			for _, field := range []string{"Retry-After", "X-RateLimit-Reset", "RateLimit", "Age", "Date"} {
				try(status, field, value, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Remaining", value)
			}
		}
	}
	var flood []string
	for i := range 10_000 {
		flood = append(flood, "Retry-After", fmt.Sprint(i), fmt.Sprintf("X-RateLimit-%d-Remaining", i), "0")
	}
	try(429, flood...)
}

// A success between two refusals lets the second one slow the bucket. Without it the second hold is
// twice as long. A response of a server that is down, of another host or out of a cache, a refusal
// of another scope and a call without an answer are no successes, whichever way the permit goes.
func TestSignal_WhatCountsAsSuccess(t *testing.T) {
	limit := outbound.Limit{Capacity: 100, LeakRate: 100}
	zero := func(_ *http.Response, s *profile.Signal) { *s = profile.Signal{} }
	by := func(say func(*outbound.Permit)) func(*http.Response, *outbound.Permit) {
		return func(_ *http.Response, p *outbound.Permit) { say(p) }
	}
	for name, c := range map[string]struct {
		rt      transport.Transport
		host    string // of the request that has led here by a redirect
		success bool
	}{
		"200":                 {rt: transport.Transport{Base: answer(200, nil)}, success: true},
		"404":                 {rt: transport.Transport{Base: answer(404, nil)}, success: true},
		"499":                 {rt: transport.Transport{Base: answer(499, nil)}, success: true},
		"500":                 {rt: transport.Transport{Base: answer(500, nil)}},
		"502":                 {rt: transport.Transport{Base: answer(502, nil)}},
		"503":                 {rt: transport.Transport{Base: answer(503, nil)}},
		"503, for 10 s":       {rt: transport.Transport{Base: answer(503, nil, "Retry-After", "10")}},
		"an overload":         {rt: transport.Transport{Base: answer(529, nil)}},
		"a cached 200":        {rt: transport.Transport{Base: answer(200, nil, "X-From-Cache", "1")}},
		"a cached 429":        {rt: transport.Transport{Base: answer(429, nil, "Age", "3")}},
		"another scope":       {rt: transport.Transport{Base: answer(429, nil), OnSignal: zero}},
		"a lock":              {rt: transport.Transport{Base: answer(429, nil), OnSignal: func(_ *http.Response, s *profile.Signal) { s.Reason = profile.Lock }}},
		"another host":        {rt: transport.Transport{Base: answer(200, nil)}, host: "elsewhere.test"},
		"JudgeNever":          {rt: transport.Transport{Base: answer(200, nil), Judge: transport.JudgeNever}},
		"an error":            {rt: transport.Transport{Base: failing(io.ErrUnexpectedEOF)}},
		"a panic":             {rt: transport.Transport{Base: roundTripper(crash)}},
		"OnResponse failed":   {rt: transport.Transport{Base: answer(200, nil), OnResponse: by((*outbound.Permit).Failed)}},
		"OnResponse answered": {rt: transport.Transport{Base: answer(200, nil), OnResponse: by(func(p *outbound.Permit) { p.Answered(outbound.Answer{}) })}},
		"OnResponse is done":  {rt: transport.Transport{Base: answer(200, nil), OnResponse: by((*outbound.Permit).Done)}, success: true},
	} {
		ways := []*transport.Transport{&c.rt}
		if c.rt.OnResponse == nil {
			ways = append(ways, followed(&c.rt))
		}
		for way, rt := range ways {
			for kind, limits := range map[string][]outbound.Limit{
				"one limit": {limit}, "two limits": {limit, limit.Of(1, "other")}, "in flight": {limit, outbound.InFlight(5)},
			} {
				for _, costed := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						b := bucket(limits...)
						refuse := func() {
							trip(t, &transport.Transport{Base: answer(429, nil), Limiter: b})
						}
						refuse()
						time.Sleep(time.Minute)
						req := newRequest(t, nil)
						if costed {
							ctx, _ := transport.WithCost(t.Context(), outbound.Cost{1})
							req = req.WithContext(ctx)
						}
						if c.host != "" {
							req.Response = &http.Response{Request: newRequest(t, nil)}
							req.Response.Request.URL.Host = c.host
						}
						rt.Limiter = b
						_ = panics(func() {
							if resp, err := rt.RoundTrip(req); err == nil {
								finish(resp)
							}
						})
						time.Sleep(time.Minute)
						refuse()
						held, speed, most := time.Second, 0.9, time.Second
						if !c.success { // a doubled hold is up to a quarter longer
							held, speed, most = 2*time.Second, 1, 2500*time.Millisecond
						}
						if s := stateOf(t, b); s.HeldFor < held || s.HeldFor > most || s.Speed != speed {
							t.Errorf("%s (way %d, %s, WithCost %v): then held for %v at speed %v, want %v at %v", name, way, kind, costed, s.HeldFor, s.Speed, held, speed)
						}
					})
				}
			}
		}
	}
}

// However often the API refuses, calls go to it again when MaxHold is over, whichever way a refusal
// takes to the bucket.
func TestSignal_HoldsDoubleUpToMaxHold(t *testing.T) {
	one, two := outbound.PerSecond(10), outbound.PerMinute(6000).Of(0, "minute")
	hour := []string{"Retry-After", "3600"}
	for name, c := range map[string]struct {
		limits []outbound.Limit
		header []string
		rt     transport.Transport
		want   string
	}{
		"no hint":                {limits: []outbound.Limit{one}, want: "[0 1 3 7 12 17 22 27]"},
		"no hint, two limits":    {limits: []outbound.Limit{one, two}, want: "[0 1 3 7 12 17 22 27]"},
		"an hour":                {limits: []outbound.Limit{one}, header: hour, want: "[0 5 10 15 20 25]"},
		"an hour, OnResponse":    {limits: []outbound.Limit{one}, header: hour, rt: transport.Transport{OnResponse: ignore}, want: "[0 5 10 15 20 25]"},
		"an hour, by the permit": {limits: []outbound.Limit{one, two}, rt: transport.Transport{OnResponse: func(_ *http.Response, p *outbound.Permit) { p.Refused(time.Hour) }}, want: "[0 5 10 15 20 25]"},
		"observed":               {limits: []outbound.Limit{one}, rt: transport.Transport{Limiter: outbound.Unlimited{}}, want: "[0 1 3 7 12 17 22 27]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var calls []float64
			rt := c.rt
			rt.MaxHold = 5 * time.Second
			rt.Base = roundTripper(func(req *http.Request) (*http.Response, error) {
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
			equal(t, fmt.Sprint(calls), c.want, "%s: calls at", name)
		})
	}
}

// A late response reports what remained when it left. Calls have left since, so the bucket holds,
// and its observers learn for how long.
func TestSignal_CountsCallsThatHaveLeftSince(t *testing.T) {
	for _, limits := range [][]outbound.Limit{{outbound.PerSecond(10)}, {outbound.PerSecond(10), outbound.PerMinute(600).Of(0, "minute")}} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(limits...)
			var held []time.Duration
			defer b.Observe(func(e outbound.Event) {
				if e.Kind == outbound.EventHeld {
					held = append(held, e.Hold)
				}
			})()
			trip(t, &transport.Transport{Limiter: b, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				for range 20 {
					time.Sleep(120 * time.Millisecond)
					trip(t, &transport.Transport{Base: answer(200, nil), Limiter: b})
				}
				return answer(200, nil, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "20", "X-RateLimit-Reset", "60")(req)
			})})
			s := stateOf(t, b)
			synctest.Wait()
			errorIf(t, s.HeldFor != time.Minute || !slices.Equal(held, []time.Duration{time.Minute}),
				"%v: 20 of 20 have left since, held for %v, events with %v; want a minute", limits, s.HeldFor, held)
		})
	}
}

// What OnResponse reports of the answer does not turn Used off. A response of another host does.
func TestUsed_SettlesWhatOnResponseHasJudged(t *testing.T) {
	for name, judge := range map[string]func(*outbound.Permit){
		"none":    func(p *outbound.Permit) { p.Answered(outbound.Answer{}) },
		"hold":    func(p *outbound.Permit) { p.Hold(time.Second) },
		"refused": func(p *outbound.Permit) { p.Refused(time.Second) },
		"done":    (*outbound.Permit).Done,
	} {
		for _, redirected := range []bool{false, true} {
			r, req := new(recorder), newRequest(t, nil)
			if redirected {
				req.Response = &http.Response{Request: newRequest(t, nil)}
				req.Response.Request.URL.Host = "elsewhere.test"
			}
			_, err := (&transport.Transport{
				Base: answer(429, nil), Limiter: r,
				OnResponse: func(_ *http.Response, p *outbound.Permit) { judge(p) },
				Used:       func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{50}, true },
			}).RoundTrip(req)
			fatalIf(t, err != nil, "%v", err)
			if got := r.take(); strings.Contains(got, "settle 50") == redirected {
				t.Errorf("%s (redirected: %v): recorded %q", name, redirected, got)
			}
		}
	}
}

// listener is what a call's listener gets.
type listener []outbound.Answer

func (l *listener) Answered(a outbound.Answer) { *l = append(*l, a) }

// The listener of a call gets each quota that the response reports, whether it holds the bucket or
// not.
func TestListen_GetsEachQuota(t *testing.T) {
	header := []string{"Ratelimit", `"minute";r=30;t=1, "day";r=900;t=3600`, "Ratelimit-Policy", `"minute";q=60;w=60, "day";q=1000;w=86400`}
	for name, c := range map[string]struct {
		status      int
		rt          transport.Transport
		minute, day int // which number of a Cost each counts
		refusals    int
	}{
		"success": {status: 200},
		"refusal": {status: 429, refusals: 1},
		"units":   {status: 200, rt: transport.Transport{Units: map[string]int{"day": 2}}, minute: -1, day: 2},
		"OnResponse": {status: 200, rt: transport.Transport{OnResponse: func(_ *http.Response, p *outbound.Permit) {
			p.Answered(outbound.Answer{Kind: outbound.AnswerQuota}) // does not keep the transport from judging
		}}},
	} {
		var got listener
		b := bucket(slow)
		c.rt.Limiter = limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
			p, err := b.Acquire(ctx, c)
			p.Listen(&got)
			return p, err
		})
		c.rt.Base = answer(c.status, nil, header...)
		trip(t, &c.rt)
		var budgets []outbound.Budget
		refusals := 0
		for _, a := range got {
			switch {
			case a.Kind == outbound.AnswerQuota && a.Budget != outbound.Budget{}:
				budgets = append(budgets, a.Budget)
			case a.Kind == outbound.AnswerRefused:
				refusals++
			}
		}
		if want := []outbound.Budget{
			{Policy: "minute", Limit: 60, Remaining: 30, Reset: time.Second, Window: time.Minute, Number: c.minute},
			{Policy: "day", Limit: 1000, Remaining: 900, Reset: time.Hour, Window: 24 * time.Hour, Number: c.day},
		}; !slices.Equal(budgets, want) || refusals != c.refusals {
			t.Errorf("%s: got %+v and %d refusals, want %+v and %d", name, budgets, refusals, want, c.refusals)
		}
	}
}
