package outboundtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// OpenAI reports requests and tokens with each answer.
func TestOpenAI_HasRequestsAndTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

// A refusal of OpenAI names the day, or the quota without credit.
func TestOpenAI_NamesDayAndQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := OpenAI(FixedWindow(1, 24*time.Hour), SlidingLog(2, 100*time.Hour).Of("quota", nil))
		tell(t, api, "POST", "/", 0).want(t, 200, "X-RateLimit-Reset-Requests: 24h0m0s", "X-RateLimit-Limit-Quota")
		tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After: 86400", "Retry-After-Ms: 86400000", "body: on requests per day (RPD)", `body: "type":"requests"`)
		time.Sleep(24 * time.Hour)
		tell(t, api, "POST", "/", 0).want(t, 200)
		time.Sleep(24 * time.Hour)
		tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After", "Retry-After-Ms", "X-RateLimit-Remaining-Requests: 1", `body: "code":"insufficient_quota"`)
	})
}

// A refusal by several limits names the one with the latest reset.
func TestOpenAI_NamesTheLimitThatIsBrokenLongest(t *testing.T) {
	hour, minute := SlidingLog(1, time.Hour).Of("tokens", nil), SlidingLog(1, time.Minute)
	for _, rules := range [][]Rule{{hour, minute}, {minute, hour}, {minute, hour, InFlight(1)}} {
		synctest.Test(t, func(t *testing.T) {
			api := OpenAI(rules...)
			tell(t, api, "POST", "/", 0).want(t, 200)
			tell(t, api, "POST", "/", 0).want(t, 429, "Retry-After: 3600", "body: on tokens per min")
		})
	}
}
