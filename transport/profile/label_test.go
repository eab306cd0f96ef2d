package profile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// pairs returns the names and values of headers.
func pairs(headers string) (all []string) {
	for one := range strings.SplitSeq(headers, ", ") {
		name, v, _ := strings.Cut(one, ": ")
		all = append(all, name, v)
	}
	return all
}

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
		s := profile.Generic.Read(answer(200, pairs(headers)...), now)
		var got []string
		for _, p := range s.Policies() {
			got = append(got, fmt.Sprint(p.Name, " ", p.Limit, " ", p.Remaining, " ", p.Reset, " ", p.Window))
		}
		slices.Sort(got)
		errorIf(t, strings.Join(got, "; ") != want, "%s\n%q, want %q", headers, got, want)
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
		s := profile.Generic.Read(answer(429, pairs(headers)...), now)
		errorIf(t, s.Wait.String() != want, "%s: %v, want %s", headers, s.Wait, want)
	}
}

// The IsRetryAfter field of a profile may be a time since 1970.
func TestRetryAfter_OfAProfileMayBeATime(t *testing.T) {
	p := &profile.Profile{Name: "mine", Fields: []profile.Field{
		{Header: "X-Next-Call", Is: profile.IsRetryAfter}, {Header: "X-Pause", Is: profile.IsRetryAfter, In: time.Second}, {Header: "X-Window", Is: profile.IsWindow}, {Header: "X-Max", Is: profile.IsLimit},
	}}
	for _, c := range []struct {
		header, v string
		want      time.Duration
	}{
		{"X-Next-Call", "30", 30 * time.Second},
		{"X-Next-Call", "1788264060", 61 * time.Second},
		{"X-Next-Call", "1788264060.5", 61500 * time.Millisecond},
		{"X-Next-Call", "1788264060000", 61 * time.Second},
		{"X-Next-Call", "1788263940", 0}, // over
		{"X-Next-Call", "999999999", 999999999 * time.Second},
		{"X-Next-Call", "100000000000000", (1 << 31) * time.Second},
		{"X-Pause", "1788264060", 1788264060 * time.Second},
	} {
		s := p.Read(answer(429, c.header, c.v), now)
		errorIf(t, s.Wait != c.want, "%s: %s is a wait of %v, want %v", c.header, c.v, s.Wait, c.want)
	}
	s := p.Read(answer(200, "X-Max", "9", "X-Window", "1788264060"), now)
	all := s.Policies()
	errorIf(t, len(all) != 1 || all[0].Window != 1788264060*time.Second, "%+v", all)
}

// Each line of a header may come from another server: of several the strictest values count.
func TestRead_HeaderTwiceTakesTheStricter(t *testing.T) {
	for name, lines := range map[string][]string{
		"draft 07":             {"RateLimit", "limit=9, remaining=0, reset=50", "RateLimit", "limit=10, remaining=9, reset=5"},
		"draft 07, in a line":  {"RateLimit", "limit=9, remaining=0, reset=50, limit=10, remaining=9, reset=5"},
		"draft 07, reversed":   {"RateLimit", "limit=10, remaining=9, reset=5", "RateLimit", "limit=9, remaining=0, reset=50"},
		"since draft 08":       {"RateLimit", `"a";r=0;t=50`, "RateLimit", `"a";r=9;t=5`, "RateLimit-Policy", `"a";q=9`, "RateLimit-Policy", `"a";q=10`},
		"three of no standard": {"X-RateLimit-Limit", "9", "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Remaining", "9", "X-RateLimit-Reset", "50", "X-RateLimit-Reset", "5"},
	} {
		s := profile.Generic.Read(answer(200, lines...), now)
		if all := s.Policies(); len(all) != 1 || all[0].Limit != 9 || all[0].Remaining != 0 || all[0].Reset != 50*time.Second || s.Wait != 50*time.Second {
			t.Errorf("%s: a wait of %v, %+v", name, s.Wait, all)
		}
	}
}

// RFC 9110 has seconds in Retry-After. A number that is a time close by cannot be such a wait,
// and several APIs send one; any other number is what the RFC says.
func TestRetryAfter_NumberMayBeATime(t *testing.T) {
	const day = 24 * time.Hour
	for v, want := range map[string]time.Duration{
		"1788264060": 61 * time.Second, "1788264060.5": 61500 * time.Millisecond, "1788264060000": 61 * time.Second,
		"1788264000": 0, "1788263940": 0, // over
		"1791633600": 39*day + time.Second, "1791806400": 1791806400 * time.Second, // in 39 days, and in 41
		"1784894400": 0, "1784635200": 1784635200 * time.Second, // 39 days ago, and 42
		"86400": day, "999999999": 999999999 * time.Second, "99999999999": forever, "100000000000000": forever,
	} {
		for _, header := range []string{"Retry-After", "X-RateLimit-Retry-After"} {
			if s := profile.Generic.Read(answer(429, header, v), now); s.Wait != want || !s.HasRetryAfter {
				t.Errorf("%s: %s is a wait of %v, want %v", header, v, s.Wait, want)
			}
		}
	}
	s := profile.Generic.Read(answer(429, "Retry-After", "1788264060, 30", "Retry-After-Ms", "45000"), now)
	errorIf(t, s.Wait != 61*time.Second || !s.Absolute, "of three: %+v, want 1m1s", s)
}

// Until reads all forms of a point in time.
func TestResponse_Until(t *testing.T) {
	for v, want := range map[string]time.Duration{
		"1788264060": time.Minute, "1788264060.5": 60500 * time.Millisecond, "1788264060000": time.Minute,
		"2026-09-01T12:01:00Z": time.Minute, "Tue, 01 Sep 2026 12:01:00 GMT": time.Minute,
		"1788260000": 0, "2026-09-01T11:00:00Z": 0, // over
		"60": -1, "999999999": -1, "100000000000000": -1, "1m0s": -1, "-1788264060": -1, "soon": -1, "": -1,
	} {
		p := &profile.Profile{Name: "mine", Judge: func(r *profile.Response, _ *profile.Signal) {
			d, ok := r.Until(v)
			errorIf(t, ok != (want >= 0) || ok && d != want, "until %q: %v %v, want %v", v, d, ok, want)
		}}
		p.Read(answer(429), now)
	}
}
