package outboundtest_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// post calls an API and returns the answer with its body.
func post(api *outboundtest.API, path, body string) (*http.Response, string) {
	client := &http.Client{Transport: api}
	res, err := client.Post("http://api.example.com"+path, "application/json", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		panic(err)
	}
	return res, string(text)
}

// GitHub refuses with 403. A client that only looks for 429 takes that for a lack of
// permission.
func ExampleGitHub() {
	api := outboundtest.GitHub()
	var res *http.Response
	var body string
	for range 181 { // a POST takes 5 points of the 900 a minute
		res, body = post(api, "/repos/o/r/issues", "{}")
	}
	fmt.Println(res.StatusCode, res.Header.Get("X-RateLimit-Remaining"), "of", res.Header.Get("X-RateLimit-Limit"), res.Header.Get("X-RateLimit-Resource"))
	fmt.Println(strings.Contains(body, "secondary rate limit"), res.Header.Get("Retry-After") != "")
	// Output:
	// 403 4820 of 5000 core
	// true true
}

func ExampleShopifyREST() {
	api := outboundtest.ShopifyREST(outboundtest.LeakyBucket(3, 0.01)) // slower than the real one, so that the example has time
	for range 4 {
		res, _ := post(api, "/admin/api/2026-01/products.json", "{}")
		after := res.Header.Get("Retry-After")
		fmt.Println(res.StatusCode, res.Header.Get("X-Shopify-Shop-Api-Call-Limit"), "decimal Retry-After:", strings.Contains(after, "."))
	}
	// Output:
	// 200 1/3 decimal Retry-After: false
	// 200 2/3 decimal Retry-After: false
	// 200 3/3 decimal Retry-After: false
	// 429 3/3 decimal Retry-After: true
}

// A query asks for 600 points and uses 50, and the bucket is charged 50.
func ExampleShopifyGraphQL() {
	points := func(n float64) func(*http.Request) float64 {
		return func(*http.Request) float64 { return n }
	}
	api := outboundtest.ShopifyGraphQL(outboundtest.LeakyBucket(1000, 50).Of("points", points(600)).Settle(points(50)))
	res, body := post(api, "/admin/api/2026-01/graphql.json", `{"query":"{shop{id}}"}`)
	fmt.Println(res.StatusCode, body)
	// Output:
	// 200 {"data":{},"extensions":{"cost":{"actualQueryCost":50,"requestedQueryCost":600,"throttleStatus":{"currentlyAvailable":950,"maximumAvailable":1000.0,"restoreRate":50.0}}}}
}

func ExampleDiscord() {
	api := outboundtest.Discord()
	var buckets []string
	for _, path := range []string{"/channels/1/messages", "/channels/1/messages/2/crosspost", "/channels/9/messages"} {
		res, _ := post(api, path, "{}")
		buckets = append(buckets, res.Header.Get("X-RateLimit-Bucket"))
		fmt.Println(path, res.Header.Get("X-RateLimit-Remaining"), "remaining")
	}
	fmt.Println("the same bucket:", buckets[0] == buckets[1], buckets[0] == buckets[2])
	// Output:
	// /channels/1/messages 4 remaining
	// /channels/1/messages/2/crosspost 4 remaining
	// /channels/9/messages 4 remaining
	// the same bucket: false true
}

func ExampleOpenAI() {
	api := outboundtest.OpenAI()
	res, _ := post(api, "/v1/responses", strings.Repeat("word", 20_000)) // 20,000 tokens
	for _, unit := range []string{"Requests", "Tokens"} {
		fmt.Println(unit, res.Header.Get("X-RateLimit-Remaining-"+unit), "of", res.Header.Get("X-RateLimit-Limit-"+unit),
			"all of them in", res.Header.Get("X-RateLimit-Reset-"+unit))
	}
	res, _ = post(api, "/v1/responses", strings.Repeat("word", 20_000))
	_, err := time.ParseDuration(res.Header.Get("Retry-After-Ms") + "ms")
	fmt.Println(res.StatusCode, err)
	// Output:
	// Requests 499 of 500 all of them in 120ms
	// Tokens 10000 of 30000 all of them in 40s
	// 429 <nil>
}

func ExampleAnthropic() {
	api := outboundtest.Anthropic()
	res, _ := post(api, "/v1/messages", strings.Repeat("word", 12_345))
	fmt.Println(res.StatusCode, res.Header.Get("Anthropic-RateLimit-Requests-Remaining"), res.Header.Get("Anthropic-RateLimit-Input-Tokens-Remaining"))
	_, err := time.Parse(time.RFC3339, res.Header.Get("Anthropic-RateLimit-Input-Tokens-Reset"))
	fmt.Println(err)
	// Output:
	// 200 49 18000
	// <nil>
}

// A refusal has a reason, and does not tell when the next call may come.
func ExampleStripe() {
	api := outboundtest.Stripe(outboundtest.SlidingLog(25, time.Hour)) // so that the example has time
	for range 25 {
		post(api, "/v1/charges", "")
	}
	res, _ := post(api, "/v1/charges", "")
	fmt.Printf("%d %s %q\n", res.StatusCode, res.Header.Get("Stripe-Rate-Limited-Reason"), res.Header.Get("Retry-After"))
	// Output: 429 global-rate ""
}

func ExampleRateLimitFields() {
	api := outboundtest.RateLimitFields()
	res, _ := post(api, "/", "")
	fmt.Println(res.Header.Get("RateLimit-Policy"))
	fmt.Println(res.Header.Get("RateLimit"))
	// Output:
	// "burst";q=10;w=1, "hourly";q=1000;w=3600
	// "burst";r=9;t=1, "hourly";r=999;t=3600
}

// An API with headers of its own.
func ExampleVendor() {
	api := &outboundtest.API{
		Rules: []outboundtest.Rule{outboundtest.SlidingLog(2, time.Hour)},
		Vendor: func(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
			hourly := d.Counts[0]
			w.Header().Set("X-Quota", fmt.Sprintf("%g/%g", hourly.Remaining, hourly.Limit))
			if d.Refused {
				http.Error(w, "slow down", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		},
	}
	for range 3 {
		res, body := post(api, "/", "")
		fmt.Println(res.StatusCode, res.Header.Get("X-Quota"), strings.TrimSpace(body))
	}
	// Output:
	// 200 1/2 ok
	// 200 0/2 ok
	// 503 0/2 slow down
}

// The API's limit doubles while it runs. The units that were used stay used.
func ExampleAPI_SetRules() {
	api := outboundtest.GitHub(outboundtest.FirstCallWindow(100, time.Hour))
	for range 60 {
		post(api, "/user", "")
	}
	api.SetRules(outboundtest.FirstCallWindow(200, time.Hour))
	res, _ := post(api, "/user", "")
	fmt.Println(res.Header.Get("X-RateLimit-Remaining"), "of", res.Header.Get("X-RateLimit-Limit"))
	// Output: 139 of 200
}
