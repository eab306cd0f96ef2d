package outboundtest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Shopify REST reports the level of its bucket, and a Retry-After of 2.0 with a refusal.
func TestShopifyREST_HasItsBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := ShopifyREST()
		const limit = "X-Shopify-Shop-Api-Call-Limit: "
		for i := range 40 {
			tell(t, api, "GET", "/orders.json", 0).want(t, 200, limit+fmt.Sprintf("%d/40", i+1), "Retry-After", "body: {}")
		}
		tell(t, api, "GET", "/orders.json", 0).want(t, 429, limit+"40/40", "Retry-After: 2.0", "body: Exceeded 2 calls per second")
		time.Sleep(500*time.Millisecond - 10) // nearer the rounding of the rule decides
		tell(t, api, "GET", "/orders.json", 0).want(t, 429, limit+"40/40", "Retry-After: 2.0")
		time.Sleep(10 * time.Nanosecond)
		tell(t, api, "GET", "/orders.json", 0).want(t, 200, limit+"40/40")
		time.Sleep(750 * time.Millisecond)
		tell(t, api, "GET", "/orders.json", 0).want(t, 200, limit+"40/40") // 39.5 calls, rounded up
		api.SetRules(LeakyBucket(80, 4))
		tell(t, api, "GET", "/orders.json", 0).want(t, 200, limit+"41/80") // 40.5
		api.SetRules(LeakyBucket(4, 0.25))
		tell(t, api, "GET", "/orders.json", 0).want(t, 429, limit+"4/4", "Retry-After: 150.0") // 40.5 + 1 - 4 units to leak
		time.Sleep(150 * time.Second)
		tell(t, api, "GET", "/orders.json", 0).want(t, 200, limit+"4/4")
	})
}

// Shopify GraphQL reports costs, and refusals, in a 200.
func TestShopifyGraphQL_HasCostsInA200(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		points := func(r *http.Request) float64 { return float64(r.ContentLength) }
		half := func(r *http.Request) float64 { return float64(r.ContentLength) / 2 }
		api := ShopifyGraphQL(LeakyBucket(1000, 50).Of("points", points).Settle(half))
		api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"shop":{"id":7}}`) })
		ask := func(cost int, body string) {
			t.Helper()
			tell(t, api, "POST", "/graphql.json", cost).want(t, 200, "Retry-After", "Content-Type: application/json", "body: "+body)
		}
		status := func(left int) string {
			return fmt.Sprintf(`"throttleStatus":{"currentlyAvailable":%d,"maximumAvailable":1000.0,"restoreRate":50.0}`, left)
		}
		ask(900, `{"data":{"shop":{"id":7}},"extensions":{"cost":{"actualQueryCost":450,"requestedQueryCost":900,`+status(550)+`}}}`)
		ask(600, `{"errors":[{"extensions":{"code":"THROTTLED","documentation":"https://shopify.dev/api/usage/rate-limits"},"message":"Throttled"}],`+
			`"extensions":{"cost":{"actualQueryCost":null,"requestedQueryCost":600,`+status(550)+`}}`)
		if body := tell(t, api, "POST", "/graphql.json", 600).body; strings.Contains(body, `"data"`) {
			t.Errorf("a refused query has data: %s", body)
		}
		time.Sleep(time.Second - 10)
		ask(600, status(599))
		time.Sleep(10 * time.Nanosecond)
		ask(600, `"actualQueryCost":300,"requestedQueryCost":600,`+status(300)) // (600 - 550) / 50 s later
		ask(1001, `"MAX_COST_EXCEEDED"`)
		api.SetRules(LeakyBucket(2000, 100.5).Of("points", points).Settle(half))
		ask(1300, `"actualQueryCost":650,"requestedQueryCost":1300,"throttleStatus":{"currentlyAvailable":650,"maximumAvailable":2000.0,"restoreRate":100.5}`)
	})
}

// Shopify GraphQL adds its costs only to a JSON object of a 200.
func TestShopifyGraphQL_LeavesOtherAnswersAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := ShopifyGraphQL()
		for body, status := range map[string]int{"broken": 502, "{}": 503, "ok": 200} {
			api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			})
			if r := tell(t, api, "POST", "/graphql.json", 0); r.status != status || r.body != body {
				t.Errorf("got %+v, want %d, %s", r, status, body)
			}
		}
	})
}
