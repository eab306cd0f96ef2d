package transport_test

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Discord names the bucket of a route in its responses, and counts each token and each channel in it
// separately. Two routes of channel 1 turn out to share a bucket.
func ExampleDiscovered() {
	ids := regexp.MustCompile("[0-9]+")
	d := &transport.Discovered{
		Route: func(req *http.Request) string {
			return req.Method + " " + ids.ReplaceAllString(req.URL.Path, "{id}")
		},
		Scope: func(req *http.Request) string {
			return req.Header.Get("Authorization") + " " + ids.FindString(req.URL.Path) // the first id is the channel's
		},
		Name: transport.HeaderName("X-RateLimit-Bucket"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return outbound.NewBucket(key, outbound.Limit{Capacity: 2, LeakRate: 2. / 3600})
		}},
	}
	client := &http.Client{Transport: &transport.Transport{
		Base: answering(200, "{}", "X-RateLimit-Bucket", "abcd"),
		For:  d.For, OnResponse: d.Learn, Profile: profile.Discord,
	}}
	visit(client, "https://discord.com/api/channels/1/messages")
	visit(client, "https://discord.com/api/channels/1/pins")
	visit(client, "https://discord.com/api/channels/1/messages")
	visit(client, "https://discord.com/api/channels/1/pins")
	visit(client, "https://discord.com/api/channels/1/pins/1")
	visit(client, "https://discord.com/api/channels/1/pins/1")
	visit(client, "https://discord.com/api/channels/2/pins")
	// Output:
	// 200
	// 200
	// 200
	// 200
	// 200
	// discord.com=abcd de6d9e7b36ef85c03c5055b2804b3b09 held: false  30m0s
	// 200
}

// GitHub counts searches separately from other calls, and each response names which of the two it was.
// So a search that leaves nothing until the reset holds the searches, and no other call. The responses
// report the hourly limit, so no limiter counts it. No response reports the secondary limit, 900 calls
// a minute for all of them together. The limiter of other calls keeps to 860, which leaves 40 for the
// searches. GitHub allows no more of those anyway.
func ExampleDiscovered_gitHub() {
	left := map[string]string{"core": "4711", "search": "0"}
	github := roundTripper(func(req *http.Request) (*http.Response, error) { // stands for the network
		resource := "core"
		if strings.HasPrefix(req.URL.Path, "/search/") {
			resource = "search"
		}
		return answering(200, "{}", "X-RateLimit-Resource", resource, "X-RateLimit-Remaining", left[resource],
			"X-RateLimit-Reset", "1798761660", "Date", "Fri, 01 Jan 2027 00:00:00 GMT").RoundTrip(req)
	})
	d := &transport.Discovered{
		Route: func(req *http.Request) string { // one route for all that have one name
			if strings.HasPrefix(req.URL.Path, "/search/") {
				return req.URL.Path
			}
			return "others"
		},
		Name: transport.HeaderName("X-RateLimit-Resource"),
		Limiters: &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return outbound.NewBucket(key, outbound.PerMinute(860).Burst(10))
		}},
	}
	client := &http.Client{Transport: &transport.Transport{
		Base: github,
		For:  d.For, OnResponse: d.Learn, Profile: profile.GitHub,
	}}
	visit(client, "https://api.github.com/search/issues?q=bug")
	visit(client, "https://api.github.com/search/issues?q=crash")
	visit(client, "https://api.github.com/repos/golang/go")
	// Output:
	// 200
	// api.github.com /search/issues held: true exhausted 1m1s
	// 200
}
