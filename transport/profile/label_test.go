package profile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// Names of headers say what their values are, and names that only look like a limit's say nothing.
func TestHeaders_NamesAreRead(t *testing.T) {
	for headers, want := range map[string]string{
		"X-Vendor-RateLimit-Limit: 9, X-Vendor-RateLimit-Remaining: 3, X-Vendor-RateLimit-Reset: 20": "vendor 9 3 20s 0s",
		"X-Sib-RateLimit-Limit: 9, X-Sib-RateLimit-Remaining: 3":                                     "sib 9 3 -1ns 0s",
		"X-RateLimit-Perday-Limit: 9, X-RateLimit-Perday-Remaining: 3":                               "perday 9 3 -1ns 24h0m0s",
		"X-RateLimit-Limit-day: 9, X-RateLimit-Remaining-day: 3":                                     "day 9 3 -1ns 24h0m0s",
		"X-Ratelimit-Limit: 600, X-Ratelimit-Remain: 3, X-Ratelimit-Window: 5m":                      " 600 3 -1ns 5m0s",  // Companies House
		"X-RateLimit-Limit: 150/15m, X-RateLimit-Remaining: 3":                                       " 150 3 -1ns 15m0s", // EVE Online
		"X-Discogs-Ratelimit: 60, X-Discogs-Ratelimit-Remaining: 3, X-Discogs-Ratelimit-Used: 57":    "discogs 60 3 -1ns 0s",
		"X-RateLimit-Limit: 100;window=60, X-RateLimit-Remaining: 3, X-RateLimit-Reset: 3":           " 100 3 3s 1m0s",       // Whoop
		"Rate-Limit: 9, Rate-Limit-Available: 3, Rate-Limit-Over: 0, Rate-Limit-Reset: 20":           " 9 3 20s 0s",          // Ticketmaster
		"X-Rate-Limit-Remaining: 3, X-Rate-Limit-Remaining-Seconds: 20":                              " -1 3 20s 0s",         // Rollbar
		"X-HB-RateLimit-Requests-Remain: 3, X-HB-RateLimit-Requests-Expire: 1788264020000":           "requests -1 3 20s 0s", // Huobi
		"X-Post-Rate-Limit-Limit: 9, X-Post-Rate-Limit-Remaining: 3, X-Post-Rate-Limit-Reset: 20":    "post 9 3 20s 0s",      // Imgur
		"X-Some-Limit: 9, X-Some-Remaining: 3, X-Some-Reset: 20":                                     "some 9 3 20s 0s",
		"X-Rate-Limit-Reset-Tokens: 55":                                                              "tokens -1 -1 55s 0s", // github.com/openai/openai-python/issues/937
		"X-RateLimit-FillRate: 5, X-RateLimit-Interval-Seconds: 60, X-RateLimit-Limit: 9":            " 9 -1 -1ns 1m0s",
		"X-RateLimit-Limit: 9, X-RateLimit-Reset: 45000, X-RateLimit-Period: 60":                     " 9 -1 45s 1m0s", // milliseconds
		"X-RateLimit-Policy: 100;w=60":                                                               " 100 -1 -1ns 1m0s",
		"X-RateLimit-Limit: 1,000, X-RateLimit-Remaining: 1,000, X-RateLimit-Reset: 1,000":           "", // commas between thousands

		"Access-Control-Expose-Headers: X-RateLimit-Limit": "", "X-Total-Count: 9": "", "X-Page-Limit: 9, X-Page-Remaining: 3": "",
		"X-Beta-RateLimit-Limit: 9, X-Beta-RateLimit-Remaining: 0, X-Beta-RateLimit-Reset: 9": "", "X-Figma-Rate-Limit-Type: low": "",
		"X-RateLimit-Limit-Type: 3": "", "X-RateLimit-Over-Limit: 1": "", "X-RateLimit-Nearlimit: 1": "", "X-RateLimit-Tokens-Query-Cost: 68": "",
		"X-RateLimit-Used-CurrentRequest: 1": "", "X-RateLimit-Max-Age: 60": "", "X-RateLimit-Version: 2": "", "X-Envoy-RateLimited: true": "",
		"X-RateLimit-Retry-Count: 3": "", "X-RateLimit-Limit-Exceeded: 1": "", "X-RateLimit-Delay: 0.5": "", "X-Upload-Limit: 9": "",
	} {
		var pairs []string
		for one := range strings.SplitSeq(headers, ", ") {
			name, v, _ := strings.Cut(one, ": ")
			pairs = append(pairs, name, v)
		}
		s := profile.Generic.Read(answer(200, pairs...), now)
		var got []string
		for _, p := range s.Policies() {
			got = append(got, fmt.Sprint(p.Name, " ", p.Limit, " ", p.Remaining, " ", p.Reset, " ", p.Window))
		}
		if slices.Sort(got); strings.Join(got, "; ") != want {
			t.Errorf("%s\n%q, want %q", headers, got, want)
		}
	}
}

// A wait stands in headers of several names, and in milliseconds where a reset shows that.
func TestHeaders_WaitsOfRefusals(t *testing.T) {
	for headers, want := range map[string]string{
		"X-RateLimit-After: 27": "27s",
		"Retry-After: 555, X-RateLimit-Reset-After: 1, X-RateLimit-Remaining: 0":                                     "555ms", // Discord's webhooks
		"Retry-After: 600, X-RateLimit-Reset-After: 1, X-RateLimit-Remaining: 0":                                     "10m0s",
		"Retry-After: 60, X-RateLimit-Reset: 1, X-RateLimit-Remaining: 0":                                            "1m0s",
		"X-RateLimit-Limit: 9, X-RateLimit-Remaining: 0, X-RateLimit-Window: 10":                                     "10s", // at most
		"X-RateLimit-Limit: 9, X-RateLimit-Remaining: 0, X-RateLimit-Window: 3600":                                   "0s",
		"X-RateLimit-Limit: 9, X-RateLimit-Remaining: 8, X-RateLimit-Reset: 1940":                                    "0s", // another limit
		"X-RateLimit-Limit: 9, X-RateLimit-Remaining: 0, X-RateLimit-FillRate: 1, X-RateLimit-Interval-Seconds: 300": "5m0s",
	} {
		var pairs []string
		for one := range strings.SplitSeq(headers, ", ") {
			name, v, _ := strings.Cut(one, ": ")
			pairs = append(pairs, name, v)
		}
		if s := profile.Generic.Read(answer(429, pairs...), now); s.Wait.String() != want {
			t.Errorf("%s: %v, want %s", headers, s.Wait, want)
		}
	}
}
