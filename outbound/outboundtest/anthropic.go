package outboundtest

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
)

// Anthropic returns an API that behaves as Anthropic does towards one organisation and class of
// models (its documentation as of 2026), or with other rules if some are given. Its own are 50
// "requests", 30,000 "input-tokens" and 8,000 "output-tokens" a minute, in buckets that hold a
// minute's worth. A call has a quarter of its body's bytes as input tokens, and no output tokens.
// Give the rules other costs with Rule.Of and Rule.Settle.
//
// Every answer carries Anthropic-RateLimit-, the unit of each rule, and -Limit, -Remaining and
// -Reset. Remaining tokens are rounded to the nearest thousand. Reset is when the whole limit is
// free again, in RFC 3339, cut to whole seconds. Anthropic-RateLimit-Tokens-* repeats the rule of
// tokens with the smallest share left. A refusal is 429 with a rate_limit_error and, if the time is
// known, a Retry-After.
func Anthropic(rules ...Rule) *API {
	none := func(*http.Request) float64 { return 0 }
	return vendorAPI(answerAnthropic, rules,
		LeakyBucket(50, 50./60).Of("requests", nil),
		LeakyBucket(30_000, 30_000./60).Of("input-tokens", tokensOf),
		LeakyBucket(8_000, 8_000./60).Of("output-tokens", none),
	)
}

func answerAnthropic(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	var tightest *Count
	set := func(unit string, c *Count) {
		left := c.Remaining
		if strings.HasSuffix(unit, "tokens") {
			left = math.Round(left/1000) * 1000
		}
		prefix := "Anthropic-RateLimit-" + unit
		w.Header().Set(prefix+"-Limit", whole(c.Limit))
		w.Header().Set(prefix+"-Remaining", whole(left))
		w.Header().Set(prefix+"-Reset", d.At.Add(c.Reset).Format(time.RFC3339))
	}
	for i := range d.Counts {
		c := &d.Counts[i]
		if c.inFlight() || c.Unit == "refusals" {
			continue
		}
		set(requestsFor(c.Unit), c)
		if strings.HasSuffix(c.Unit, "tokens") && (tightest == nil || c.Remaining/c.Limit < tightest.Remaining/tightest.Limit) {
			tightest = c
		}
	}
	if tightest != nil {
		set("tokens", tightest)
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	setRetryAfter(w.Header(), d.RetryAfter)
	no := d.broken()
	text := "Too many calls at the same time."
	if !no.inFlight() {
		text = fmt.Sprintf("This request would exceed the rate limit for your organization of %s %s per %v.",
			whole(no.Limit), strings.ReplaceAll(requestsFor(no.Unit), "-", " "), no.Window)
	}
	writeJSON(w, http.StatusTooManyRequests, object{"type": "error", "error": object{"type": "rate_limit_error", "message": text}})
}
