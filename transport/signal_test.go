package transport

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// pool is a bucket of 100 calls and 1000 tokens; 10 calls and 100 tokens leak per second.
func pool() *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("api",
		outbound.Limit{Capacity: 100, LeakRate: 10}, outbound.Limit{Capacity: 1000, LeakRate: 100, Unit: 1}))
}

func stateOf(t *testing.T, b *outbound.Bucket) outbound.State {
	t.Helper()
	s, err := b.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each answer holds the bucket for some time, for a reason, and after a refusal that follows
// a success the bucket goes on at some speed.
func TestTheEffectOfAnAnswerOnTheBucket(t *testing.T) {
	tokens := map[string]int{"requests": 0, "tokens": 1}
	const slower = 0.9
	for name, c := range map[string]struct {
		rt     Transport
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
		"too many at once":         {rt: Transport{Profile: profile.Stripe}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency"}, held: time.Second, reason: "concurrency", speed: 1},
		"too many, beyond MaxHold": {rt: Transport{Profile: profile.Stripe, MaxHold: 50 * time.Millisecond}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency"}, held: 50 * time.Millisecond, reason: "concurrency", speed: 1},
		"429, beyond MaxHold":      {rt: Transport{MaxHold: 50 * time.Millisecond}, status: 429, held: 50 * time.Millisecond, reason: "rate", speed: slower},
		"too many at once, longer": {rt: Transport{Profile: profile.Stripe}, status: 429, header: []string{"Stripe-Rate-Limited-Reason", "global-concurrency", "Retry-After", "60"}, held: time.Second, reason: "concurrency", speed: 1},
		"a lock":                   {rt: Transport{Profile: profile.Stripe}, status: 429, body: `{"error":{"code":"lock_timeout"}}`, header: []string{"Content-Type", "application/json", "Retry-After", "60"}, speed: 1},
		"an endpoint's own limit":  {rt: Transport{Profile: profile.Zendesk}, status: 429, header: []string{"X-Rate-Limit-Remaining", "9", "Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41", "Retry-After", "41"}, speed: 1},
		"nothing for an endpoint":  {rt: Transport{Profile: profile.Zendesk}, status: 200, header: []string{"X-Rate-Limit-Remaining", "9", "Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41"}, speed: 1},
		"nothing, for that alone":  {rt: Transport{Profile: profile.Zendesk, Units: map[string]int{"tickets-index": 0}}, status: 200, header: []string{"Zendesk-RateLimit-Tickets-Index", "total=100; remaining=0; resets=41"}, held: 41 * time.Second, reason: "exhausted", speed: 1},
		"what others share":        {rt: Transport{Profile: profile.Discord}, status: 429, header: []string{"X-RateLimit-Scope", "shared", "Retry-After", "41"}, speed: 1},
		"records locked":           {rt: Transport{Profile: profile.HubSpot}, status: 423, speed: 1},
		"an overload":              {status: 529, header: []string{"Retry-After", "60"}, speed: 1},
		"down for a while":         {status: 503, header: []string{"Retry-After", "60"}, held: time.Minute, speed: 1},
		"GraphQL":                  {rt: Transport{Profile: profile.ShopifyGraphQL}, status: 200, body: `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":100,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":0,"restoreRate":50}}}}`, header: []string{"Content-Type", "application/json"}, held: 2 * time.Second, reason: "rate", speed: slower},
		"refused inside a 200":     {rt: Transport{Profile: profile.OpenAI}, status: 200, body: "event: error", header: []string{"Content-Type", "text/event-stream", "X-RateLimit-Limit-Tokens", "900", "X-RateLimit-Remaining-Tokens", "-27689", "X-RateLimit-Reset-Tokens", "64", "Retry-After", "4"}, held: 4 * time.Second, reason: "rate", speed: slower},
		"nothing remains":          {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, held: time.Minute, reason: "exhausted", speed: 1},
		"one remains":              {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "60"}, speed: 1},
		"nothing, until soon":      {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "2"}, speed: 1},
		"nothing, a little longer": {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3"}, held: 3 * time.Second, reason: "exhausted", speed: 1},
		"nothing, until a time":    {status: 200, header: []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1798761602"}, speed: 1},
		"nothing, until a later":   {status: 200, header: []string{"Date", "Fri, 01 Jan 2027 00:00:00 GMT", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1798761603"}, held: 4 * time.Second, reason: "exhausted", speed: 1},
		"nothing, for how long?":   {status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0"}, speed: 1},
		"nothing, but it leaks":    {rt: Transport{Profile: profile.Shopify}, status: 200, header: []string{"X-Shopify-Shop-Api-Call-Limit", "40/40"}, speed: 1},
		"nothing, but it drips":    {rt: Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Requests", "9", "X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "6m"}, speed: 1},
		"nothing, but it refills":  {rt: Transport{Profile: profile.Linear}, status: 200, header: []string{"X-RateLimit-Requests-Limit", "9", "X-RateLimit-Requests-Remaining", "0", "X-RateLimit-Requests-Reset", "3600"}, speed: 1},
		"nothing, beyond MaxHold":  {rt: Transport{MaxHold: time.Minute}, status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "600"}, held: time.Minute, reason: "exhausted", speed: 1},
		"no tokens, not heeded":    {rt: Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Tokens", "900", "X-RateLimit-Remaining-Tokens", "0", "X-RateLimit-Reset-Tokens", "6m"}, speed: 1},
		"unlimited tokens":         {rt: Transport{Profile: profile.OpenAI}, status: 200, header: []string{"X-RateLimit-Limit-Tokens", "-1", "X-RateLimit-Remaining-Tokens", "-1", "Retry-After", "4"}, speed: 1},
		"no unit of ours":          {rt: Transport{Units: map[string]int{"requests": 4, "": -1}}, status: 200, header: []string{"X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, speed: 1},
		"tokens by name":           {rt: Transport{Units: map[string]int{"t": 1}}, status: 200, header: []string{"RateLimit-Policy", `"t";q=900;w=60`, "RateLimit", `"t";r=0;t=30`}, held: 30 * time.Second, reason: "exhausted", speed: 1},
		"of two, the other":        {rt: Transport{Units: tokens}, status: 200, header: []string{"RateLimit-Policy", `"t";q=900;w=60`, "RateLimit", `"t";r=0;t=30`}, speed: 1},
		"out of a cache":           {status: 200, header: []string{"Age", "7", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"}, speed: 1},
	} {
		for _, followed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := pool()
				trip(t, &Transport{Base: answer(429, nil), Limiter: b}) // now a success counts
				time.Sleep(time.Minute)
				trip(t, &Transport{Base: answer(200, nil), Limiter: b})
				rt := &c.rt
				rt.Limiter, rt.Base = b, base(func(req *http.Request) (*http.Response, error) {
					resp, err := answer(c.status, io.NopCloser(strings.NewReader(c.body)), c.header...)(req)
					resp.ContentLength = int64(len(c.body))
					return resp, err
				})
				if rt.OnResponse = nil; followed {
					rt.OnResponse = func(*http.Response, *outbound.Permit) {}
				}
				resp, err := rt.RoundTrip(newRequest(t, nil))
				if err != nil {
					t.Fatal(err)
				}
				if text, _ := io.ReadAll(resp.Body); string(text) != c.body {
					t.Errorf("%s: the body has become %q", name, text)
				}
				closeResponse(resp)
				s := stateOf(t, b)
				if s.HeldFor != c.held || s.Reason != c.reason || s.Speed != c.speed {
					t.Errorf("%s (followed: %v): held for %v by %q at speed %v, want %v, %q, %v", name, followed, s.HeldFor, s.Reason, s.Speed, c.held, c.reason, c.speed)
				}
			})
		}
	}
}

// Whatever a response claims, it holds the bucket for no longer than MaxHold and makes it no
// faster, and OnSignal sees the claim.
func TestHostileValuesHoldForMaxHoldAtMost(t *testing.T) {
	values := []string{"0", "-1", "-0", "1e10", "10000000000", "9223372037", "9223372036854775807", "99999999999999999999", "NaN", "Inf", "+5", "0x7f", "1_0", "",
		"Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "2038-01-19T03:14:08Z", "1999999999", "1999999999999", "1h", "-1h", "∞",
		strings.Repeat("9", 1<<20), strings.Repeat(" ", 4096) + "1"}
	for _, status := range []int{200, 403, 429, 503, 529} {
		for _, value := range values {
			for _, field := range []string{"Retry-After", "X-RateLimit-Reset", "RateLimit", "Age", "Date"} {
				header := []string{field, value, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Remaining", value}
				synctest.Test(t, func(t *testing.T) { hostile(t, status, value, header) })
			}
		}
	}
	var flood []string
	for i := range 10_000 {
		flood = append(flood, "Retry-After", fmt.Sprint(i), fmt.Sprintf("X-RateLimit-%d-Remaining", i), "0")
	}
	synctest.Test(t, func(t *testing.T) { hostile(t, 429, "a flood", flood) })
}

func hostile(t *testing.T, status int, value string, header []string) {
	b := pool()
	trip(t, &Transport{Base: answer(200, nil), Limiter: b})
	var seen time.Duration
	rt := &Transport{Base: answer(status, nil, header...), Limiter: b, MaxHold: 10 * time.Minute,
		OnSignal: func(_ *http.Response, s *profile.Signal) { seen = s.Wait }}
	trip(t, rt)
	s := stateOf(t, b)
	what := fmt.Sprintf("%d, %.40q in %.60q", status, value, header)
	if s.HeldFor < 0 || s.HeldFor > 10*time.Minute || s.Speed > 1 {
		t.Errorf("%s: %+v", what, s)
	}
	if seen < 0 || seen > 0 && seen < s.HeldFor && status != 429 {
		t.Errorf("%s: OnSignal has seen %v, the hold is %v", what, seen, s.HeldFor)
	}
	if status == 429 && s.HeldFor == 0 && !strings.HasPrefix(header[0], "Age") {
		t.Errorf("%s: not held at all", what)
	}
	time.Sleep(10*time.Minute + time.Second)
	trip(t, &Transport{Base: answer(200, nil), Limiter: b})
}

func TestOnSignalSeesWhatTheAPIHasAskedForBeforeItIsCapped(t *testing.T) {
	var seen time.Duration
	b := pool()
	trip(t, &Transport{Base: answer(429, nil, "Retry-After", "86400"), Limiter: b,
		OnSignal: func(_ *http.Response, s *profile.Signal) { seen = s.Wait }})
	if s := stateOf(t, b); seen != 24*time.Hour || s.HeldFor > time.Hour || s.HeldFor < 59*time.Minute {
		t.Errorf("seen %v, held for %v", seen, s.HeldFor)
	}
}

// A deadline names a point in time by the API's clock, however wrong that is.
func TestAWrongClockOfTheAPIDoesNotMatter(t *testing.T) {
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour, 20 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			b := pool()
			date := time.Now().Add(skew).UTC()
			trip(t, &Transport{Base: answer(429, nil, "Date", date.Format(http.TimeFormat), "Retry-After", date.Add(30*time.Second).Format(http.TimeFormat)), Limiter: b})
			if s := stateOf(t, b); s.HeldFor != 31*time.Second { // one second more, because the API cuts times to seconds
				t.Errorf("skew %v: held for %v", skew, s.HeldFor)
			}
		})
	}
}

// What OnResponse says of the answer does not turn Used off.
func TestUsedSettlesACallThatOnResponseHasJudged(t *testing.T) {
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
			resp, err := (&Transport{
				Base: answer(429, nil), Limiter: r,
				OnResponse: func(_ *http.Response, p *outbound.Permit) { judge(p) },
				Used:       func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{50}, true },
			}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			closeResponse(resp)
			if heard := r.heard(); strings.Contains(heard, "settle 50") == redirected {
				t.Errorf("%s (redirected: %v): heard %q", name, redirected, heard)
			}
		}
	}
}

// A 304 is free, and its units come back for other calls.
func TestAnAnswerSettlesTheUnitsThatItsCallUsed(t *testing.T) {
	used := func(resp *http.Response) (outbound.Cost, bool) {
		return outbound.Cost{}, resp.StatusCode == http.StatusNotModified
	}
	for status, want := range map[int]float64{200: 99, 304: 100, 404: 99} {
		for _, l := range []outbound.Limit{{Capacity: 100, LeakRate: 1e-6}} {
			one := outbound.Must(outbound.NewBucket("one", l))
			two := outbound.Must(outbound.NewBucket("two", l, outbound.Limit{Capacity: 200, LeakRate: 1e-6, Name: "other"}))
			for _, b := range []*outbound.Bucket{one, two} {
				trip(t, &Transport{Base: answer(status, nil), Limiter: b, Used: used})
				if s := stateOf(t, b); s.Remaining-s.Limit.Capacity+100 < want-0.01 || s.Remaining-s.Limit.Capacity+100 > want+0.01 {
					t.Errorf("%d: %v remain in the bucket %s, want %v", status, s.Remaining, b.Key(), want)
				}
			}
		}
	}
}

// A late answer says what remained when it left, and calls have left since.
func TestASlowAnswerCountsTheCallsThatHaveLeftSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limits := range [][]outbound.Limit{{outbound.PerSecond(10)}, {outbound.PerSecond(10), outbound.PerMinute(600).Of(0, "minute")}} {
			b := outbound.Must(outbound.NewBucket("api", limits...))
			slow := &Transport{Limiter: b, Base: base(func(req *http.Request) (*http.Response, error) {
				for range 20 {
					time.Sleep(120 * time.Millisecond)
					trip(t, &Transport{Base: answer(200, nil), Limiter: b})
				}
				return answer(200, nil, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "20", "X-RateLimit-Reset", "60")(req)
			})}
			trip(t, slow)
			if s := stateOf(t, b); s.HeldFor == 0 {
				t.Errorf("%v: 20 of 20 have left since, and nothing is held", limits)
			}
		}
	})
}

// The permits of OnResponse and of WithCost pass on every part of an Answer.
func TestThePermitOfWithCostPassesOnReasonAndRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := pool()
		ctx, permit := WithCost(t.Context(), outbound.Cost{1})
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{0, -1, -1, -1}, Wait: time.Minute}) // there is no call yet to hear it
		trip(t, &Transport{Base: base(func(req *http.Request) (*http.Response, error) {
			return answer(200, nil)(req)
		}), Limiter: b, For: func(req *http.Request) outbound.Limiter { return nil }})
		req := newRequest(t, nil).WithContext(ctx)
		resp, err := (&Transport{Base: answer(200, nil), Limiter: b}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		closeResponse(resp)
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{0, -1, -1, -1}, Wait: time.Minute})
		if s := stateOf(t, b); s.HeldFor != time.Minute || s.Reason != "exhausted" {
			t.Errorf("held for %v by %q", s.HeldFor, s.Reason)
		}
		permit.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 2 * time.Minute, Reason: "quota"})
		if s := stateOf(t, b); s.HeldFor != 2*time.Minute || s.Reason != "quota" {
			t.Errorf("held for %v by %q", s.HeldFor, s.Reason)
		}
	})
}

// A function of the user that panics leaves no body open and no call in progress.
func TestAPanicWhileTheAnswerIsJudgedClosesItsBody(t *testing.T) {
	for name, rt := range map[string]*Transport{
		"OnSignal":          {OnSignal: func(*http.Response, *profile.Signal) { panic("crash") }},
		"Used":              {Used: func(*http.Response) (outbound.Cost, bool) { panic("crash") }},
		"OnSignal, at once": {OnSignal: func(*http.Response, *profile.Signal) { panic("crash") }, Limiter: outbound.Must(outbound.NewBucket("api", outbound.InFlight(1)))},
	} {
		body := newBody("x")
		rt.Base = answer(200, body)
		if rt.Limiter == nil {
			rt.Limiter = pool()
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = rt.RoundTrip(newRequest(t, nil))
			t.Errorf("%s: no panic", name)
		}()
		if body.closed.Load() != 1 {
			t.Errorf("%s: the body was closed %d times", name, body.closed.Load())
		}
		if _, err := rt.Limiter.Acquire(t.Context(), outbound.Cost{1}); err != nil {
			t.Errorf("%s: the call is in progress for ever: %v", name, err)
		}
	}
}
