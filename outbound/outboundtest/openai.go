package outboundtest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// OpenAI returns an API that behaves as OpenAI does towards one project and model (its
// documentation as of 2026), or with other rules if some are given. Its own are 500 "requests" and
// 30,000 "tokens" a minute, in buckets that hold a minute's worth. A call has a quarter of its
// body's bytes as tokens, without the answer's tokens. Give the rule another cost with Rule.Of.
//
// Every answer carries X-RateLimit-Limit-, -Remaining- and -Reset- with the unit of each rule at
// the end ("requests" for "calls"). Reset is the time until all of the limit is there again, in the
// form of 12ms or 6m0s, rounded up to milliseconds. A refusal is 429 with Retry-After,
// Retry-After-Ms and the code rate_limit_exceeded. Both are missing if the time is unknown, as for
// a cost above the limit. A rule of "quota" stands for money. It has no header. Its refusal is a
// 429 with the code insufficient_quota, which stays.
func OpenAI(rules ...Rule) *API {
	return vendorAPI(answerOpenAI, rules,
		LeakyBucket(500, 500./60).Of("requests", nil),
		LeakyBucket(30_000, 30_000./60).Of("tokens", tokensOf),
	)
}

func answerOpenAI(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	h := w.Header()
	for _, c := range d.Counts {
		if c.inFlight() || c.Unit == "quota" || c.Unit == "refusals" {
			continue
		}
		h.Set("X-RateLimit-Limit-"+requestsFor(c.Unit), whole(c.Limit))
		h.Set("X-RateLimit-Remaining-"+requestsFor(c.Unit), whole(c.Remaining))
		h.Set("X-RateLimit-Reset-"+requestsFor(c.Unit), upTo(c.Reset, time.Millisecond).String())
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	if d.first(func(c *Count) bool { return c.Broken && c.Unit == "quota" }) != nil {
		writeJSON(w, http.StatusTooManyRequests, openAIError("insufficient_quota", "insufficient_quota",
			"You exceeded your current quota, please check your plan and billing details."))
		return
	}
	no := d.broken()
	unit := requestsFor(no.Unit)
	per := "min"
	if no.Window >= 23*time.Hour {
		per = "day"
	}
	name := fmt.Sprintf("%s per %s (%s)", unit, per, strings.ToUpper(unit[:1]+"p"+per[:1]))
	var text string
	switch {
	case no.Cost > no.Limit:
		text = fmt.Sprintf("Request too large for the model on %s: Limit %s, Requested %s.", name, whole(no.Limit), rounded(no.Cost))
	case d.RetryAfter == 0:
		text = "Rate limit reached. Please try again later."
	default:
		wait := upTo(d.RetryAfter, time.Millisecond)
		setRetryAfter(h, wait)
		h.Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds(), 10))
		text = fmt.Sprintf("Rate limit reached for the model on %s: Limit %s, Used %s, Requested %s. Please try again in %v.",
			name, whole(no.Limit), whole(whollyUsed(no)), rounded(no.Cost), wait)
	}
	writeJSON(w, http.StatusTooManyRequests, openAIError(unit, "rate_limit_exceeded", text))
}

func openAIError(kind, code, message string) object {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": code}}
}

// requestsFor returns the unit as vendors name it that call a call a request.
func requestsFor(unit string) string {
	if unit == "calls" || unit == "" {
		return "requests"
	}
	return unit
}
