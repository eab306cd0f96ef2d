package transport_test

import (
	"io"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// part is a part of a body that comes so long after the headers.
type part struct {
	after time.Duration
	text  string
}

// newLate returns a body whose parts come at their times, on the fake clock. Without an end it stalls
// until it is closed.
func newLate(ends bool, parts ...part) *counted {
	r, w := io.Pipe()
	go func() {
		begin := time.Now()
		for _, p := range parts {
			time.Sleep(p.after - time.Since(begin))
			_, _ = io.WriteString(w, p.text)
		}
		if ends {
			w.Close()
		}
	}()
	return &counted{Reader: r}
}

// If the body of a refusal is late, the headers hold the bucket meanwhile, and the body can only
// lengthen the hold.
func TestLateBody_HeadersHoldTheBucket(t *testing.T) {
	const (
		soon = 10 * time.Millisecond // what a body that comes with its headers may take
		most = 2 * time.Second       // for how long the transport waits for a body
		s    = time.Second
	)
	lock := `{"error":{"code":"lock_timeout"}}`
	graphQL := `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":100,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":0,"restoreRate":50}}}}`
	wait := func(seconds string) []string { return []string{"Retry-After", seconds} }
	patient := &profile.Profile{Name: "patient", Bodies: []profile.Body{{Status: 429}}, Judge: func(r *profile.Response, s *profile.Signal) {
		if len(r.Body) > 0 {
			s.RetryAfter = 900 * time.Millisecond
		}
	}}
	for name, c := range map[string]struct {
		profile *profile.Profile
		status  int
		header  []string
		stalls  bool
		parts   []part
		held    time.Duration // after the headers have been applied, from then on
		took    time.Duration // until RoundTrip returns
		then    time.Duration // the hold from then on
		speed   float64
		reason  string
		signals int
	}{
		"prompt":                          {profile: profile.GitHub, status: 429, header: wait("30"), parts: []part{{0, `{}`}}, held: 30*s - soon, then: 30 * s, speed: 0.9, reason: "rate", signals: 1},
		"stalls":                          {profile: profile.GitHub, status: 429, header: wait("30"), stalls: true, held: 30 * s, took: most, then: 30*s - most + soon, speed: 0.9, reason: "rate", signals: 2},
		"stalls, no time":                 {profile: profile.OpenAI, status: 429, stalls: true, held: s, took: most, speed: 0.9, signals: 2},
		"stalls half-way":                 {profile: profile.OpenAI, status: 429, header: wait("30"), stalls: true, parts: []part{{0, `{"error":{"code":"insufficient_quota",`}}, held: 30 * s, took: most, then: 30*s - most + soon, speed: 0.9, reason: "quota", signals: 2},
		"late":                            {profile: profile.GitHub, status: 429, header: wait("30"), parts: []part{{s, `{}`}}, held: 30 * s, took: s, then: 29*s + soon, speed: 0.9, reason: "rate", signals: 2},
		"a lock, prompt":                  {profile: profile.Stripe, status: 429, header: wait("30"), parts: []part{{0, lock}}, speed: 1, signals: 1},
		"a lock, almost prompt":           {profile: profile.Stripe, status: 429, header: wait("30"), parts: []part{{9 * time.Millisecond, lock}}, took: 9 * time.Millisecond, speed: 1, signals: 1},
		"a lock, late":                    {profile: profile.Stripe, status: 429, header: wait("30"), parts: []part{{s, lock}}, held: 30 * s, took: s, then: 29*s + soon, speed: 0.9, reason: "rate", signals: 2},
		"a lock, never":                   {profile: profile.Stripe, status: 429, header: wait("30"), parts: []part{{3 * s, lock}}, held: 30 * s, took: most, then: 30*s - most + soon, speed: 0.9, reason: "rate", signals: 2},
		"a longer wait in a late body":    {profile: profile.Dropbox, status: 429, parts: []part{{s / 2, `{"error":{"retry_after":60}}`}}, held: s, took: s / 2, then: 60 * s, speed: 0.9, reason: "rate", signals: 2},
		"a short wait, a longer one late": {profile: patient, status: 429, header: []string{"Retry-After-Ms", "200"}, parts: []part{{s / 2, `{}`}}, held: s / 5, took: s / 2, then: 9 * s / 10, speed: 0.9, reason: "rate", signals: 2},
		"a shorter wait in a late body":   {profile: profile.Airtable, status: 429, parts: []part{{s / 2, `{"errors":[{"error":"RATE_LIMIT_REACHED"}]}`}}, held: 30 * s, took: s / 2, then: 30*s - s/2 + soon, speed: 0.9, reason: "rate", signals: 2},
		"too many at once, late":          {profile: profile.Twilio, status: 429, parts: []part{{s / 2, `{"code":20429}`}}, held: s, took: s / 2, then: s/2 + soon, speed: 0.9, reason: "rate", signals: 2},
		"down for a while, stalls":        {profile: profile.Google, status: 503, header: wait("30"), stalls: true, held: 30 * s, took: most, then: 30*s - most + soon, speed: 1, signals: 2},
		"down, then a rate":               {profile: profile.AWS, status: 503, header: wait("30"), parts: []part{{s / 2, `{"code":"SlowDown"}`}}, held: 30 * s, took: s / 2, then: 30 * s, speed: 0.7, reason: "rate", signals: 2},
		"no refusal by its headers":       {profile: profile.Linear, status: 400, parts: []part{{s, `{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`}}, took: s, then: s, speed: 0.9, reason: "rate", signals: 1},
		"no refusal, stalls":              {profile: profile.ShopifyGraphQL, status: 200, stalls: true, took: most, speed: 1, signals: 1},
		"no refusal, too late":            {profile: profile.ShopifyGraphQL, status: 200, parts: []part{{3 * s, graphQL}}, took: most, speed: 1, signals: 1},
		"a refusal inside a success":      {profile: profile.ShopifyGraphQL, status: 200, parts: []part{{s, graphQL}}, took: s, then: 2 * s, speed: 0.9, reason: "rate", signals: 1},
	} {
		for _, onResponse := range []func(*http.Response, *outbound.Permit){nil, ignore} {
			bubble(t, name, func(t *testing.T) {
				b, body, signals := succeeded(t), newLate(!c.stalls, c.parts...), 0
				rt := &transport.Transport{
					Limiter: b, Profile: c.profile, OnResponse: onResponse,
					OnSignal: func(*http.Response, *profile.Signal) { signals++ },
					Base: roundTripper(func(req *http.Request) (*http.Response, error) {
						resp, err := answer(c.status, body, append(c.header, "Content-Type", "application/json")...)(req)
						resp.ContentLength = -1
						return resp, err
					}),
				}
				begin := time.Now()
				done := make(chan *http.Response, 1)
				go func() {
					resp, err := rt.RoundTrip(newRequest(t, nil))
					check(t, err)
					done <- resp
				}()
				time.Sleep(soon)
				synctest.Wait()
				if s := stateOf(t, b); s.HeldFor != c.held {
					t.Errorf("%v after the headers held for %v, want %v", soon, s.HeldFor, c.held)
				}
				resp := <-done
				took := time.Since(begin)
				errorIf(t, took != max(c.took, soon), "handed on after %v, want %v", took, c.took)
				then := c.then
				if c.took <= soon { // the transport judged the body after the headers
					then = max(0, then-soon)
				}
				if s := stateOf(t, b); s.HeldFor != then || math.Abs(s.Speed-c.speed) > 0.005 || s.HeldFor > 0 && s.Reason != c.reason {
					t.Errorf("then held for %v by %q at speed %v, want %v by %q at %v", s.HeldFor, s.Reason, s.Speed, then, c.reason, c.speed)
				}
				errorIf(t, signals != c.signals, "%d signals, want %d", signals, c.signals)
				if !c.stalls {
					want := ""
					for _, p := range c.parts {
						want += p.text
					}
					got, err := io.ReadAll(resp.Body)
					errorIf(t, string(got) != want || err != nil, "the body has become %q, %v", got, err)
				}
				resp.Body.Close()
				errorIf(t, body.closed.Load() != 1, "closed %d times", body.closed.Load())
			})
		}
	}
}
