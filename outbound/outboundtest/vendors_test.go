package outboundtest_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Anthropic writes resets as instants, and rounds remaining tokens.
func TestAnthropic_InstantsAndRoundedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const prefix = "Anthropic-RateLimit-"
		api := Anthropic()
		call := func(bytes, status int, headers ...string) {
			t.Helper()
			tell(t, api, "POST", "/v1/messages", bytes).want(t, status, headers...)
		}
		call(4*10_400, 200, prefix+"Requests-Limit: 50", prefix+"Requests-Remaining: 49", prefix+"Requests-Reset: 2000-01-01T00:00:01Z",
			prefix+"Input-Tokens-Limit: 30000", prefix+"Input-Tokens-Remaining: 20000", prefix+"Input-Tokens-Reset: 2000-01-01T00:00:20Z",
			prefix+"Output-Tokens-Limit: 8000", prefix+"Output-Tokens-Remaining: 8000", prefix+"Output-Tokens-Reset: 2000-01-01T00:00:00Z",
			prefix+"Tokens-Limit: 30000", prefix+"Tokens-Remaining: 20000", prefix+"Tokens-Reset: 2000-01-01T00:00:20Z", "Retry-After", "body: {}")
		call(4*20_000, 429, prefix+"Requests-Remaining: 49", prefix+"Input-Tokens-Remaining: 20000", "Retry-After: 1",
			`body: "type":"rate_limit_error"`, "body: 30000 input tokens per 1m0s")
		time.Sleep(800 * time.Millisecond) // 400 tokens
		call(4*20_000, 200, prefix+"Input-Tokens-Remaining: 0", prefix+"Input-Tokens-Reset: 2000-01-01T00:01:00Z", prefix+"Requests-Reset: 2000-01-01T00:00:02Z")
		api.SetRules(LeakyBucket(90_000, 1500).Of("input-tokens", nil))
		call(0, 200, prefix+"Input-Tokens-Limit: 90000", prefix+"Input-Tokens-Remaining: 60000", prefix+"Input-Tokens-Reset: 2000-01-01T00:00:20Z", prefix+"Requests-Limit")
	})
}

// Discord has buckets, scopes and a ban.
func TestDiscord(t *testing.T) {
	bubble(t, "Discord reports the bucket with each answer and each refusal", func(t *testing.T) {
		time.Sleep(250*time.Millisecond + 1)
		api := Discord(FirstCallWindow(3, 5*time.Second).By(func(*http.Request) string { return "abcd1234:1" }))
		call := func(at time.Duration, status int, headers ...string) {
			t.Helper()
			time.Sleep(at)
			tell(t, api, "POST", "/channels/1/messages", 0).want(t, status, append(headers,
				"X-RateLimit-Bucket: abcd1234", "X-RateLimit-Global", "Via: 1.1 google")...)
		}
		call(0, 200, "X-RateLimit-Limit: 3", "X-RateLimit-Remaining: 2", "X-RateLimit-Reset: 946684805.250", "X-RateLimit-Reset-After: 5",
			"Retry-After", "X-RateLimit-Scope")
		call(430*time.Millisecond, 200, "X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 946684805.250", "X-RateLimit-Reset-After: 4.57")
		call(0, 200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 4.57")
		call(0, 429, "X-RateLimit-Limit: 3", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946684805.250", "X-RateLimit-Reset-After: 4.57",
			"X-RateLimit-Scope: user", "Retry-After: 5", `body: {"global":false,"message":"You are being rate limited.","retry_after":4.57}`)
		call(4569*time.Millisecond+999_999, 429, "X-RateLimit-Reset-After: 0.001", "Retry-After: 1", `body: "retry_after":0.001`) // 1 ns, rounded up
		call(1, 200, "X-RateLimit-Remaining: 2", "X-RateLimit-Reset-After: 5", "X-RateLimit-Reset: 946684810.250")
		api.SetRules(FirstCallWindow(9, 5*time.Second).By(func(*http.Request) string { return "abcd1234:1" }))
		call(0, 200, "X-RateLimit-Limit: 9", "X-RateLimit-Remaining: 7", "X-RateLimit-Reset-After: 5")
	})
	bubble(t, "Discord's buckets are of a method, a route and a channel", func(t *testing.T) {
		api := Discord()
		bucket := func(method, path, remaining string) string {
			t.Helper()
			r := tell(t, api, method, path, 0)
			r.want(t, 200, "X-RateLimit-Limit: 5", "X-RateLimit-Remaining: "+remaining)
			if b := r.Get("X-RateLimit-Bucket"); len(b) == 32 {
				return b
			}
			t.Errorf("bucket %q, want 32 digits", r.Get("X-RateLimit-Bucket"))
			return ""
		}
		post := bucket("POST", "/api/v10/channels/1/messages", "4")
		other := bucket("DELETE", "/api/v10/channels/1/messages/77", "3")
		errorIf(t, other != post, "routes that share a count are in buckets %s and %s", post, other)
		if other := bucket("POST", "/api/v10/channels/2/messages", "4"); other != post {
			t.Errorf("the name of a bucket tells the channel: %s and %s", post, other)
		}
		for _, path := range []string{"/channels/1/messages", "/channels/1/pins", "/guilds/1/messages", "/users/@me"} {
			other := bucket("GET", path, "4")
			errorIf(t, other == post, "reading %s is in the bucket of writing messages", path)
		}
	})
	bubble(t, "Refusals by the global and the shared limit have their scope", func(t *testing.T) {
		bucket := FirstCallWindow(10, time.Minute).By(func(*http.Request) string { return "abcd1234" })
		api := Discord(bucket, FirstCallWindow(1, 64570*time.Millisecond).Of("global", nil))
		tell(t, api, "GET", "/", 0).want(t, 200, "X-RateLimit-Remaining: 9")
		tell(t, api, "GET", "/", 0).want(t, 429, "X-RateLimit-Global: true", "X-RateLimit-Scope: global", "Retry-After: 65",
			"X-RateLimit-Remaining", "X-RateLimit-Bucket", `body: {"global":true,"message":"You are being rate limited.","retry_after":64.57}`)

		api = Discord(bucket, FirstCallWindow(1, 1336570*time.Millisecond).Of("shared", nil))
		tell(t, api, "GET", "/", 0).want(t, 200, "X-RateLimit-Remaining: 9")
		tell(t, api, "GET", "/", 0).want(t, 429, "X-RateLimit-Global", "X-RateLimit-Scope: shared", "Retry-After: 1337",
			"X-RateLimit-Remaining: 9", "X-RateLimit-Reset-After: 60", "X-RateLimit-Bucket: abcd1234", `body: "retry_after":1336.57`)
	})
	bubble(t, "Discord bans after 10 000 invalid calls in 10 minutes", func(t *testing.T) {
		api := Discord()
		api.Rules = append(api.Rules, SlidingLog(1, time.Hour).Of("shared", nil).By(func(r *http.Request) string {
			if r.URL.Path == "/emoji" {
				return "emoji"
			}
			return ""
		}))
		api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/forbidden" {
				w.WriteHeader(http.StatusForbidden)
			}
		})
		for range 5 {
			tell(t, api, "GET", "/forbidden", 0).want(t, 403) // as bad as a refusal
		}
		tell(t, api, "GET", "/emoji", 0).want(t, 200)
		for range 3 {
			tell(t, api, "GET", "/emoji", 0).want(t, 429, "X-RateLimit-Scope: shared") // forgiven
		}
		for range 9994 {
			tell(t, api, "GET", "/forbidden", 0).want(t, 429, "X-RateLimit-Scope: user")
		}
		time.Sleep(10*time.Minute - 1)
		tell(t, api, "GET", "/fine", 0).want(t, 200)
		tell(t, api, "GET", "/forbidden", 0).want(t, 403, "Via: 1.1 google") // the 10,000th
		tell(t, api, "GET", "/fine", 0).want(t, 429, "Retry-After: 3600", "Via", "X-RateLimit-Scope", "X-RateLimit-Limit", "body: 1015")
		time.Sleep(time.Hour - 1)
		tell(t, api, "GET", "/fine", 0).want(t, 429, "Retry-After: 1", "Via")
		time.Sleep(time.Nanosecond)
		tell(t, api, "GET", "/fine", 0).want(t, 200, "Via: 1.1 google")
	})
}

// GitHub has primary and secondary limits.
func TestGitHub(t *testing.T) {
	bubble(t, "GitHub's primary limit reports its reset, and no Retry-After", func(t *testing.T) { // from 2000-01-01 00:00:00 UTC on, 946684800
		time.Sleep(700 * time.Millisecond)
		api := GitHub(FirstCallWindow(3, time.Hour).Of("core", nil))
		call := func(at time.Duration, status int, headers ...string) {
			t.Helper()
			time.Sleep(at)
			tell(t, api, "GET", "/user", 0).want(t, status, append(headers,
				"X-RateLimit-Resource: core", "Retry-After", "Content-Type: application/json")...)
		}
		call(0, 200, "X-RateLimit-Limit: 3", "X-RateLimit-Remaining: 2", "X-RateLimit-Used: 1", "X-RateLimit-Reset: 946688400",
			"Date: Sat, 01 Jan 2000 00:00:00 GMT", "body: {}")
		call(time.Second, 200, "X-RateLimit-Remaining: 1", "X-RateLimit-Used: 2", "X-RateLimit-Reset: 946688400")
		call(0, 200, "X-RateLimit-Remaining: 0", "X-RateLimit-Used: 3", "X-RateLimit-Reset: 946688400")
		call(0, 403, "X-RateLimit-Limit: 3", "X-RateLimit-Remaining: 0", "X-RateLimit-Used: 3", "X-RateLimit-Reset: 946688400",
			"Date: Sat, 01 Jan 2000 00:00:01 GMT", `body: "API rate limit exceeded for `)
		// Reset is cut: Date and Reset name the same second, and it is still too early.
		call(time.Hour-time.Second-1, 403, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946688400", "Date: Sat, 01 Jan 2000 01:00:00 GMT")
		call(1, 200, "X-RateLimit-Remaining: 2", "X-RateLimit-Used: 1", "X-RateLimit-Reset: 946692000")
		api.SetRules(FirstCallWindow(10, time.Hour).Of("core", nil))
		call(0, 200, "X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 8", "X-RateLimit-Used: 2", "X-RateLimit-Reset: 946692000")
		api.SetRules(FirstCallWindow(1, time.Hour).Of("core", nil))
		call(0, 403, "X-RateLimit-Limit: 1", "X-RateLimit-Remaining: 0", "X-RateLimit-Used: 1", "X-RateLimit-Reset: 946692000")
	})
	bubble(t, "GitHub's secondary limits have a Retry-After and their own text", func(t *testing.T) {
		api := GitHub()
		for range 180 {
			tell(t, api, "PATCH", "/user", 0).want(t, 200, "X-RateLimit-Limit: 5000", "Retry-After") // 5 points each
		}
		time.Sleep(20*time.Second + 1)
		tell(t, api, "GET", "/user", 0).want(t, 403, "Retry-After: 40", "X-RateLimit-Remaining: 4820", "X-RateLimit-Resource: core",
			"body: You have exceeded a secondary rate limit")
		tell(t, api, "POST", "/graphql", 0).want(t, 200, "X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 4999", "X-RateLimit-Resource: graphql")

		api = GitHub(FixedWindow(1000, time.Hour), InFlight(3))
		api.Latency = time.Second
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { tell(t, api, "GET", "/user", 0).want(t, 200, "X-RateLimit-Resource: core") })
		}
		synctest.Wait()
		tell(t, api, "GET", "/user", 0).want(t, 429, "Retry-After: 60", "X-RateLimit-Remaining: 997", "body: secondary rate limit")
		wg.Wait()
	})
	bubble(t, "GitHub counts the resources of paths separately", func(t *testing.T) {
		api := GitHub()
		for range 30 {
			tell(t, api, "GET", "/search/code", 0).want(t, 200, "X-RateLimit-Limit: 30", "X-RateLimit-Resource: search")
		}
		tell(t, api, "GET", "/search/code", 0).want(t, 403, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946684860", "Retry-After")
		tell(t, api, "GET", "/repos/a/b", 0).want(t, 200, "X-RateLimit-Remaining: 4999", "X-RateLimit-Resource: core")

		api = GitHub(FixedWindow(1, time.Hour).Of("graphql", nil))
		tell(t, api, "POST", "/graphql", 0).want(t, 200, "X-RateLimit-Remaining: 0")
		tell(t, api, "POST", "/graphql", 0).want(t, 200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946688400", "body: RATE_LIMITED")
	})
}

// OpenAI has requests and tokens.
func TestOpenAI(t *testing.T) {
	bubble(t, "OpenAI reports requests and tokens with each answer", func(t *testing.T) {
		api := OpenAI()
		call := func(bytes, status int, headers ...string) {
			t.Helper()
			tell(t, api, "POST", "/v1/responses", bytes).want(t, status, headers...)
		}
		call(4*10_000-3, 200, "X-RateLimit-Limit-Requests: 500", "X-RateLimit-Remaining-Requests: 499", "X-RateLimit-Reset-Requests: 120ms",
			"X-RateLimit-Limit-Tokens: 30000", "X-RateLimit-Remaining-Tokens: 20000", "X-RateLimit-Reset-Tokens: 20s", "Retry-After", "Retry-After-Ms", "body: {}")
		call(4*19_999, 200, "X-RateLimit-Remaining-Requests: 498", "X-RateLimit-Reset-Requests: 240ms",
			"X-RateLimit-Remaining-Tokens: 1", "X-RateLimit-Reset-Tokens: 59.998s")
		call(4*100, 429, "X-RateLimit-Remaining-Requests: 498", "X-RateLimit-Reset-Requests: 240ms", "X-RateLimit-Remaining-Tokens: 1",
			"X-RateLimit-Reset-Tokens: 59.998s", "Retry-After: 1", "Retry-After-Ms: 198",
			`body: {"error":{"code":"rate_limit_exceeded","message":"Rate limit reached for the model on tokens per min (TPM): Limit 30000, Used 29999, Requested 100. Please try again in 198ms.","param":null,"type":"tokens"}}`)
		time.Sleep(198*time.Millisecond - 10)
		call(4*100, 429, "X-RateLimit-Remaining-Tokens: 99", "Retry-After-Ms: 1") // 10 ns, rounded up
		time.Sleep(10 * time.Nanosecond)
		call(4*100, 200, "X-RateLimit-Remaining-Requests: 498", "X-RateLimit-Reset-Requests: 162ms",
			"X-RateLimit-Remaining-Tokens: 0", "X-RateLimit-Reset-Tokens: 1m0s")
		call(4*30_001, 429, "Retry-After", "Retry-After-Ms", "body: Request too large for the model on tokens per min (TPM): Limit 30000, Requested 30001.")

		api.SetRules(LeakyBucket(60_000, 1000).Of("tokens", nil), LeakyBucket(500, 500./60).Of("requests", nil))
		call(0, 200, "X-RateLimit-Limit-Tokens: 60000", "X-RateLimit-Remaining-Tokens: 29999", "X-RateLimit-Reset-Tokens: 30.001s",
			"X-RateLimit-Remaining-Requests: 497", "X-RateLimit-Reset-Requests: 282ms")
		time.Sleep(time.Hour)
		call(0, 200, "X-RateLimit-Remaining-Tokens: 59999", "X-RateLimit-Reset-Tokens: 1ms")
	})
	bubble(t, "A refusal of OpenAI names the day, or the quota without credit", func(t *testing.T) {
		api := OpenAI(FixedWindow(1, 24*time.Hour), SlidingLog(2, 100*time.Hour).Of("quota", nil))
		tell(t, api, "POST", "/", 0).want(t, 200, "X-RateLimit-Reset-Requests: 24h0m0s", "X-RateLimit-Limit-Quota")
		tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After: 86400", "Retry-After-Ms: 86400000", "body: on requests per day (RPD)", `body: "type":"requests"`)
		time.Sleep(24 * time.Hour)
		tell(t, api, "POST", "/", 0).want(t, 200)
		time.Sleep(24 * time.Hour)
		tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After", "Retry-After-Ms", "X-RateLimit-Remaining-Requests: 1", `body: "code":"insufficient_quota"`)
	})
	t.Run("A refusal by several limits names the one with the latest reset", func(t *testing.T) {
		hour, minute := SlidingLog(1, time.Hour).Of("tokens", nil), SlidingLog(1, time.Minute)
		for _, rules := range [][]Rule{{hour, minute}, {minute, hour}, {minute, hour, InFlight(1)}} {
			synctest.Test(t, func(t *testing.T) {
				api := OpenAI(rules...)
				tell(t, api, "POST", "/", 0).want(t, 200)
				tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After: 3600", "body: on tokens per min")
			})
		}
	})
}

// The RateLimit fields have each rule.
func TestRateLimitFields(t *testing.T) {
	bubble(t, "The RateLimit fields have each rule as a policy", func(t *testing.T) {
		api := RateLimitFields(SlidingLog(2, 1500*time.Millisecond).Of("burst", nil), FirstCallWindow(4, time.Hour).Of("hourly", nil))
		call := func(at time.Duration, status int, headers ...string) {
			t.Helper()
			time.Sleep(at)
			tell(t, api, "GET", "/", 0).want(t, status, headers...)
		}
		const policy = `RateLimit-Policy: "burst";q=2;w=2, "hourly";q=4;w=3600`
		call(0, 200, policy, `RateLimit: "burst";r=1;t=2, "hourly";r=3;t=3600`, "Retry-After", "body: {}")
		call(time.Second, 200, policy, `RateLimit: "burst";r=0;t=2, "hourly";r=2;t=3599`)
		call(time.Second/4, 429, policy, `RateLimit: "burst";r=0;t=1, "hourly";r=2;t=3599`, "Retry-After: 1", "Content-Type: application/problem+json",
			`body: "type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["burst"]`)
		call(time.Second/4-1, 429, `RateLimit: "burst";r=0;t=1, "hourly";r=2;t=3599`, "Retry-After: 1")
		call(1, 200, `RateLimit: "burst";r=0;t=2, "hourly";r=1;t=3599`)
		call(time.Second, 200, `RateLimit: "burst";r=0;t=2, "hourly";r=0;t=3598`)
		call(0, 429, `RateLimit: "burst";r=0;t=1, "hourly";r=0;t=3598`, "Retry-After: 3598", `body: ["burst","hourly"]`)
		api.SetRules(FirstCallWindow(8, time.Hour).Of("hourly", nil))
		call(0, 200, `RateLimit-Policy: "hourly";q=8;w=3600`, `RateLimit: "hourly";r=3;t=3598`)
		call(3597500*time.Millisecond, 200, `RateLimit: "hourly";r=7;t=3600`)
	})
	bubble(t, "Names of rules are escaped, and numbers are whole", func(t *testing.T) {
		api := RateLimitFields(
			SlidingLog(5.5, time.Second),
			LeakyBucket(40, 2),
			InFlight(3),
			FixedWindow(1e18, time.Hour).Of("a \"b\" \\ ü\n", nil),
			FixedWindow(2, time.Hour).Of("user", nil).By(func(*http.Request) string { return "Bearer secret" }),
			FixedWindow(2, time.Hour).Of("nobody", nil).By(func(*http.Request) string { return "" }),
		)
		tell(t, api, "GET", "/", 0).want(t, 200,
			`RateLimit-Policy: "calls";q=5;w=1, "calls-2";q=40;w=20, "calls-3";q=3;qu="concurrent-requests", "a \"b\" \\ ???";q=999999999999999;w=3600, "user";q=2;w=3600;pk=:cGKxlkUNMXw=:`,
			`RateLimit: "calls";r=4;t=1, "calls-2";r=39;t=1, "calls-3";r=2, "a \"b\" \\ ???";r=999999999999999;t=3600, "user";r=1;t=3600;pk=:cGKxlkUNMXw=:`)
		api = RateLimitFields(InFlight(1).By(func(*http.Request) string { return "" }))
		tell(t, api, "GET", "/", 0).want(t, 200, "RateLimit", "RateLimit-Policy")
	})
}

// Shopify has a bucket of calls or of points.
func TestShopify(t *testing.T) {
	bubble(t, "Shopify REST reports the level of its bucket, and a Retry-After of 2.0 with a refusal", func(t *testing.T) {
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
	bubble(t, "Shopify GraphQL reports costs, and refusals, in a 200", func(t *testing.T) {
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
	bubble(t, "Shopify GraphQL adds its costs only to a JSON object of a 200", func(t *testing.T) {
		api := ShopifyGraphQL()
		for body, status := range map[string]int{"broken": 502, "{}": 503, "ok": 200} {
			api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			})
			r := tell(t, api, "POST", "/graphql.json", 0)
			errorIf(t, r.status != status || r.body != body, "got %+v, want %d, %s", r, status, body)
		}
	})
}

// Stripe gives reasons, and limits each endpoint.
func TestStripe(t *testing.T) {
	t.Run("A refusal of Stripe has its reason, and no Retry-After", func(t *testing.T) {
		path := func(r *http.Request) string { return r.URL.Path }
		for reason, rule := range map[string]Rule{
			"global-rate":          SlidingLog(1, time.Second),
			"endpoint-rate":        SlidingLog(1, time.Second).By(path),
			"global-concurrency":   InFlight(1),
			"endpoint-concurrency": InFlight(1).By(path),
			"resource-specific":    SlidingLog(1, time.Second).Of("resource", nil).By(path),
		} {
			synctest.Test(t, func(t *testing.T) {
				api := Stripe(rule)
				api.Latency = time.Second / 2
				var wg sync.WaitGroup
				wg.Go(func() { tell(t, api, "POST", "/v1/charges", 0).want(t, 200, "Stripe-Rate-Limited-Reason", "body: {}") })
				synctest.Wait()
				tell(t, api, "POST", "/v1/charges", 0).want(t, 429, "Stripe-Rate-Limited-Reason: "+reason, "Stripe-Should-Retry", "Retry-After",
					`body: "code":"rate_limit"`)
				wg.Wait()
			})
		}
	})
	bubble(t, "A locked object refuses its own calls only, as lock_timeout", func(t *testing.T) {
		object := func(r *http.Request) string { return r.URL.Path }
		api := Stripe(InFlight(1).Of("lock", nil).By(object))
		api.Latency = time.Second
		var wg sync.WaitGroup
		for _, path := range []string{"/v1/customers/a", "/v1/customers/b"} {
			wg.Go(func() { tell(t, api, "POST", path, 0).want(t, 200) })
		}
		synctest.Wait()
		tell(t, api, "POST", "/v1/customers/a", 0).want(t, 429, "Stripe-Rate-Limited-Reason", "Stripe-Should-Retry: true", "Retry-After", `body: "lock_timeout"`)
		wg.Wait()
		tell(t, api, "POST", "/v1/customers/a", 0).want(t, 200)
	})
	bubble(t, "Stripe limits each endpoint and the account", func(t *testing.T) {
		api := Stripe()
		for _, endpoint := range []string{"charges", "refunds", "customers", "payouts"} {
			for range 25 {
				tell(t, api, "POST", "/v1/"+endpoint, 0).want(t, 200)
			}
		}
		tell(t, api, "GET", "/v1/charges/ch_1", 0).want(t, 429, "Stripe-Rate-Limited-Reason: global-rate")
		time.Sleep(time.Second)
		for i := range 25 {
			tell(t, api, "GET", fmt.Sprintf("/v1/charges/ch_%d", i), 0).want(t, 200)
		}
		tell(t, api, "GET", "/v1/charges/ch_3MmL", 0).want(t, 429, "Stripe-Rate-Limited-Reason: endpoint-rate")
		tell(t, api, "POST", "/v1/charges/ch_1", 0).want(t, 200) // another operation
		tell(t, api, "GET", "/v1/charges/search", 0).want(t, 200)
	})
}
