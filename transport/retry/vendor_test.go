package retry

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// If the API's limits change and are lower than the configured ones, it refuses often, each vendor in its
// way. Every call succeeds in the end.
func TestVendor_LimitsLowerThanConfigured(t *testing.T) {
	high, low := outboundtest.SlidingLog(10, time.Second), outboundtest.SlidingLog(5, time.Second)
	full, half := outboundtest.LeakyBucket(10, 10), outboundtest.LeakyBucket(5, 5)
	for name, c := range map[string]struct {
		api     *outboundtest.API
		profile *profile.Profile
		low     outboundtest.Rule // from 10 s to 30 s
	}{
		"plain":           {&outboundtest.API{Rules: []outboundtest.Rule{high}}, nil, low},
		"Stripe":          {outboundtest.Stripe(high), profile.Stripe, low},
		"Stripe, generic": {outboundtest.Stripe(high), nil, low},
		"GitHub":          {outboundtest.GitHub(full.Of("points", nil)), profile.GitHub, half.Of("points", nil)},
		"OpenAI":          {outboundtest.OpenAI(full), profile.OpenAI, half},
		"Anthropic":       {outboundtest.Anthropic(full), profile.Anthropic, half},
		"ShopifyREST":     {outboundtest.ShopifyREST(full), profile.Shopify, half},
		"Discord":         {outboundtest.Discord(high.Of("global", nil)), profile.Discord, low.Of("global", nil)},
		"RateLimitFields": {outboundtest.RateLimitFields(high), nil, low},
		"calls in flight": {&outboundtest.API{Rules: []outboundtest.Rule{outboundtest.InFlight(3)}, Latency: 200 * time.Millisecond}, nil, outboundtest.InFlight(1)},
	} {
		bubble(t, name, func(t *testing.T) {
			first := c.api.Rules
			time.AfterFunc(10*time.Second, func() { c.api.SetRules(c.low) })
			time.AfterFunc(30*time.Second, func() { c.api.SetRules(first...) })
			admitted := 0
			limiter := count(&admitted, queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{}))
			client := Config{MaxWait: time.Hour}.NewClient(&transport.Transport{Base: c.api, Limiter: limiter, Profile: c.profile})
			took := work(t, client, 20, 600)
			r := c.api.Report()
			t.Logf("%v, %d arrived, %d refused", took, r.Arrivals, r.Refused)
			require.Equal(t, r.Arrivals, admitted, "attempts that were not admitted")
			require.Equal(t, 600, r.Admitted)
			require.LessOrEqual(t, r.Refused, 30)
			require.NoError(t, c.api.Arrivals().Check(1, 1/gap.Seconds(), 0.05))
		})
	}
}

// What is sent again depends on the vendor.
func TestVendor_SentAgainOrNot(t *testing.T) {
	bubble(t, "A 403 with a reset, as GitHub's primary limit has it, is sent again if the profile has it", func(t *testing.T) {
		for _, p := range []*profile.Profile{profile.GitHub, nil} {
			api := outboundtest.GitHub(outboundtest.FirstCallWindow(1, 20*time.Second))
			api.Skew = 26 * 365 * 24 * time.Hour // in 2000, a reset looks like a time to wait
			other := must((&http.Client{Transport: api}).Get("https://api.github.example.com/"))
			require.NoError(t, other.Body.Close())
			start := time.Now()
			client := NewClient(&transport.Transport{Base: api, Limiter: bucket(t, wide), Profile: p})
			if p == nil {
				answered(t, 403, client)
				require.Equal(t, 1, api.Report().Refused)
				continue
			}
			answered(t, 200, client)
			require.Equal(t, 2, api.Report().Admitted)
			about(t, 20*time.Second, 0.2, time.Since(start)) // and a second, since GitHub cuts the reset to seconds
		}
	})
	bubble(t, "Shopify has not carried out a mutation that it has refused, although its status is 200", func(t *testing.T) {
		api := outboundtest.ShopifyGraphQL(outboundtest.LeakyBucket(20, 2).Of("points", func(*http.Request) float64 { return 10 }))
		api.Next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"done":true}`)
		})
		client := NewClient(&transport.Transport{
			Base: api, Limiter: bucket(t, wide), Profile: profile.ShopifyGraphQL,
		}).StandardClient()
		for range 3 {
			resp := must(client.Post("https://shop.example.com/graphql.json", "application/json", strings.NewReader(`{"query":"mutation"}`)))
			text := must(io.ReadAll(resp.Body))
			require.NoError(t, resp.Body.Close())
			require.Contains(t, string(text), `"done":true`)
		}
		require.Equal(t, 3, api.Report().Admitted)
		require.Equal(t, 1, api.Report().Refused)
	})
	bubble(t, "A refusal because the credit is used up is final", func(t *testing.T) {
		api := outboundtest.OpenAI(outboundtest.SlidingLog(1, time.Hour).Of("quota", nil))
		client := NewClient(&transport.Transport{Base: api, Profile: profile.OpenAI})
		for _, status := range []int{200, 429} {
			resp := must(client.Get("https://api.openai.example.com/v1/models"))
			require.Equal(t, status, resp.StatusCode)
			text := must(io.ReadAll(resp.Body))
			require.Equal(t, status == 429, strings.Contains(string(text), "insufficient_quota"))
			require.NoError(t, resp.Body.Close())
		}
		require.Equal(t, 2, api.Report().Arrivals)
	})
}
