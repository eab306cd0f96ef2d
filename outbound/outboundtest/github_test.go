package outboundtest_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// GitHub's primary limit reports its reset, and no Retry-After.
func TestGitHub_PrimaryLimitHasNoRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from 2000-01-01 00:00:00 UTC on, 946684800
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
}

// GitHub's secondary limits have a Retry-After and their own text.
func TestGitHub_SecondaryLimitsShowInTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

// GitHub counts the resources of paths separately.
func TestGitHub_CountsEachResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
