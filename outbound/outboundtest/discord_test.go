package outboundtest_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Discord reports the bucket with each answer and each refusal.
func TestDiscord_BucketsAreInEveryAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

// Discord's buckets are of a method, a route and a channel.
func TestDiscord_BucketsCountEachChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if other := bucket("DELETE", "/api/v10/channels/1/messages/77", "3"); other != post {
			t.Errorf("routes that share a count are in buckets %s and %s", post, other)
		}
		if other := bucket("POST", "/api/v10/channels/2/messages", "4"); other != post {
			t.Errorf("the name of a bucket tells the channel: %s and %s", post, other)
		}
		for _, path := range []string{"/channels/1/messages", "/channels/1/pins", "/guilds/1/messages", "/users/@me"} {
			if other := bucket("GET", path, "4"); other == post {
				t.Errorf("reading %s is in the bucket of writing messages", path)
			}
		}
	})
}

// Refusals by the global and the shared limit have their scope.
func TestDiscord_GlobalAndSharedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

// Discord bans after 10 000 invalid calls in 10 minutes.
func TestDiscord_BansAfter10000InvalidCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
