package retry

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// A response is a refusal or a failure by its status, its headers and the profile.
func TestSignal_OfAResponse(t *testing.T) {
	const s = time.Second
	rate := func(d time.Duration) signal { return signal{throttled: true, refused: true, wait: d} }
	busy := func(d time.Duration) signal { return signal{throttled: true, wait: d} }
	synctest.Test(t, func(t *testing.T) { // the time is 2000-01-01T00:00:00Z
		for _, c := range []struct {
			profile *profile.Profile
			answer  step
			want    signal
		}{
			{nil, status(200, "Retry-After", "5"), signal{}},
			{nil, status(200, "RateLimit-Limit", "5", "RateLimit-Remaining", "0", "RateLimit-Reset", "7"), signal{}},
			{nil, status(301, "Retry-After", "5"), signal{}},
			{nil, status(403, "Retry-After", "5"), signal{}},
			{nil, status(500, "Retry-After", "5"), signal{}},
			{nil, status(503), signal{}},
			{nil, status(503, "Retry-After", "0"), signal{}},
			{nil, status(503, "Retry-After", "5"), busy(5 * s)},
			{nil, status(529), signal{}},
			{nil, status(529, "Retry-After", "5"), busy(5 * s)},
			{nil, status(429), rate(0)},
			{nil, status(429, "Retry-After", "0"), rate(0)},
			{nil, status(429, "Retry-After", "2.5"), rate(2500 * time.Millisecond)},
			{nil, status(429, "Retry-After", "5", "Age", "1"), signal{}},
			{nil, status(429, "Retry-After", "5", "X-From-Cache", "1"), signal{}},
			{nil, status(429, "Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"), rate(10 * s)},
			{nil, status(429, "RateLimit-Limit", "5", "RateLimit-Remaining", "0", "RateLimit-Reset", "7"), rate(7 * s)},
			{profile.GitHub, status(403, "Retry-After", "60"), rate(60 * s)},
			{profile.GitHub, status(403), signal{}},
			{&profile.Profile{Refusals: []int{403}, Reason: profile.Concurrency}, status(403), rate(0)},
			{&profile.Profile{Refusals: []int{409}, Reason: profile.Lock}, status(409), rate(0)},
			{profile.GitHub, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.ShopifyGraphQL, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.Mailchimp, status(529, "Retry-After", "5"), busy(5 * s)},
			{profile.AWS, status(503, "X-Amzn-Errortype", "SlowDown"), rate(0)},
			{&profile.Profile{Refusals: []int{503}}, status(503), signal{}},
			{&profile.Profile{Refusals: []int{503}, Reason: profile.Quota}, status(503, "Retry-After", "5"), busy(5 * s)},
			{profile.Stripe, status(429, "Stripe-Rate-Limited-Reason", "global-rate"), rate(0)},
			{profile.Stripe, status(429, "Stripe-Rate-Limited-Reason", "global-concurrency"), rate(0)},
		} {
			resp := &http.Response{StatusCode: c.answer.status, Header: c.answer.header, Body: newBody("")}
			got := classify(c.profile, resp)
			require.Equal(t, c.want, got, "%d %v", c.answer.status, c.answer.header)
		}
	})
}

// An account without credit is refused permanently, whatever else the response says.
func TestSignal_AccountWithoutCredit(t *testing.T) {
	for code, hopeless := range map[string]bool{"insufficient_quota": true, "billing_hard_limit_reached": true, "rate_limit_exceeded": false} {
		for _, header := range [][]string{
			nil,
			{"X-Ratelimit-Limit-Requests", "5000", "X-Ratelimit-Remaining-Requests", "4999", "X-Ratelimit-Reset-Requests", "12ms"},
			{"Retry-After", "20"},
		} {
			resp := &http.Response{StatusCode: 429, Header: status(429, header...).header, Body: newBody(`{"error":{"code":"` + code + `"}}`), ContentLength: -1}
			resp.Header.Set("Content-Type", "application/json")
			require.Equal(t, hopeless, classify(profile.OpenAI, resp).permanent, "%s %v", code, header)
		}
	}
}

// classify reads a response as the transport does.
func classify(p *profile.Profile, resp *http.Response) signal {
	s := p.Read(resp, time.Now())
	return signalOf(resp.StatusCode, &s)
}
