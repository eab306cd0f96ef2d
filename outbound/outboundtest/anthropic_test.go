package outboundtest_test

import (
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
