package outboundtest

import (
	"net/http"
	"strings"
	"time"
)

// Stripe returns an API that behaves as Stripe does towards one account in live mode (its
// documentation as of 2026), or with other rules if some are given. Its own are 100 calls in any
// second, and 25 in any second to each endpoint. An endpoint is a method and a path without its
// ids, the parts with a digit or a capital letter. Stripe has stricter limits for some endpoints
// and objects, and does not publish its limits on calls in flight.
//
// While calls keep the limits, no header mentions them. A refusal is 429 without a Retry-After.
// Stripe-Rate-Limited-Reason names the first broken rule: global-rate or global-concurrency
// (InFlight), endpoint-rate or endpoint-concurrency for a rule by key, and resource-specific for
// the unit "resource". A rule of "lock" stands for an object that another call has locked, as in
//
//	InFlight(1).Of("lock", nil).By(object)
//
// and is no limit of the account: its refusal has the code lock_timeout,
// Stripe-Should-Retry and no reason.
func Stripe(rules ...Rule) *API {
	endpoint := func(r *http.Request) string {
		parts := strings.Split(r.URL.Path, "/") // "", "v1", "charges", "ch_3Mm"
		for i := 2; i < len(parts); i++ {
			if strings.ContainsAny(parts[i], "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
				parts[i] = "{id}"
			}
		}
		return r.Method + strings.Join(parts, "/")
	}
	return vendorAPI(answerStripe, rules, SlidingLog(100, time.Second), SlidingLog(25, time.Second).By(endpoint))
}

func answerStripe(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	no := d.first(func(c *Count) bool { return c.Broken && c.Unit != "lock" })
	if no == nil {
		w.Header().Set("Stripe-Should-Retry", "true")
		writeJSON(w, http.StatusTooManyRequests, stripeError("lock_timeout", "Another call is using this object. Try again later."))
		return
	}
	reason := "global"
	if no.Key != "" {
		reason = "endpoint"
	}
	switch {
	case no.Unit == "resource":
		reason = "resource-specific"
	case no.inFlight():
		reason += "-concurrency"
	default:
		reason += "-rate"
	}
	w.Header().Set("Stripe-Rate-Limited-Reason", reason)
	writeJSON(w, http.StatusTooManyRequests, stripeError("rate_limit", "Too many calls in a short time."))
}

func stripeError(code, message string) object {
	return object{"error": object{"type": "invalid_request_error", "code": code, "message": message}}
}
