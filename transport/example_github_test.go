package transport_test

import (
	"net/http"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// GitHub counts searches apart from other calls, and names in each answer which of the two it
// was. So a search that leaves nothing until the reset holds the searches, and no other call.
// The answers tell of the hourly limit, so no limiter counts it. No answer tells of the
// secondary limit, 900 calls a minute for all of them together: the limiter of other calls
// keeps to 860, which leaves 40 for the searches; GitHub allows no more of those anyway.
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
		Route: func(req *http.Request) string { // one route for all that the answers may tell apart
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
