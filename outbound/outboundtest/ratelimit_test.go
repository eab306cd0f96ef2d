package outboundtest_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// The RateLimit fields have each rule as a policy.
func TestRateLimitFields_HaveEveryPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

// Names of rules are escaped, and numbers are whole.
func TestRateLimitFields_AreWellFormed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
