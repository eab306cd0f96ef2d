package outboundtest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"
)

// ShopifyREST returns an API that behaves as Shopify's REST API does towards one app
// in one shop (its documentation as of 2026), or with other rules if some are given.
// Its own is the standard plan's: LeakyBucket(40, 2); Advanced leaks 4 per second,
// Plus 20.
//
// Every answer carries X-Shopify-Shop-Api-Call-Limit for the first rule that counts the call: the
// calls in the bucket, rounded up, and its capacity, as in 32/40. The leak rate is in no header. A
// refusal is 429 with a Retry-After of "2.0", or longer if that would be too early, always with one
// decimal place. It is missing if the time is unknown.
func ShopifyREST(rules ...Rule) *API {
	return vendorAPI(answerShopifyREST, rules, LeakyBucket(40, 2))
}

func answerShopifyREST(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	h := w.Header()
	if c := d.first(func(c *Count) bool { return !c.inFlight() }); c != nil {
		h.Set("X-Shopify-Shop-Api-Call-Limit", whole(whollyUsed(c))+"/"+whole(c.Limit))
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	if d.RetryAfter > 0 {
		wait := max(2*time.Second, upTo(d.RetryAfter, time.Second/10))
		h.Set("Retry-After", strconv.FormatFloat(wait.Seconds(), 'f', 1, 64))
	}
	rate := ""
	if c := d.broken(); c != nil && !c.inFlight() {
		rate = fmt.Sprintf(" %g calls per second", restoreRate(c))
	}
	writeJSON(w, http.StatusTooManyRequests, object{"errors": "Exceeded" + rate + " for api client. Reduce request rates to resume uninterrupted service."})
}

// ShopifyGraphQL returns an API that behaves as Shopify's GraphQL Admin API does towards one app in
// one shop (documentation of 2026). Given rules replace its own. Its own is the standard plan's:
// LeakyBucket(2000, 100). Shopify publishes the 100 points per second, and its answers show the
// bucket of 2000 points. Advanced leaks 200, Plus 1000. A query takes 10 points, because the API
// does not read it. Give the rule the requested cost with Rule.Of, and the lower cost of the
// execution with Rule.Settle.
//
// Its headers have no limits, and its status is always 200. Every body has extensions.cost, for the
// first rule that counts the call, with requestedQueryCost, actualQueryCost (null if refused) and
// throttleStatus: maximumAvailable, currentlyAvailable and restoreRate. The answer of Next to an
// admitted call becomes the data, if it is a 200 with JSON; else it stands as it is. A refusal has
// an error with the code THROTTLED, or MAX_COST_EXCEEDED if the call costs more than the bucket
// holds.
func ShopifyGraphQL(rules ...Rule) *API {
	points := func(*http.Request) float64 { return 10 }
	return vendorAPI(answerShopifyGraphQL, rules, LeakyBucket(2000, 100).Of("points", points))
}

func answerShopifyGraphQL(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	body := make(object)
	if c := d.first(func(c *Count) bool { return !c.inFlight() }); c != nil {
		cost := object{
			"requestedQueryCost": c.Cost,
			"actualQueryCost":    c.Used,
			"throttleStatus": object{
				"maximumAvailable":   tenths(c.Limit),
				"currentlyAvailable": math.Floor(c.Remaining),
				"restoreRate":        tenths(restoreRate(c)),
			},
		}
		if d.Refused {
			cost["actualQueryCost"] = nil
		}
		body["extensions"] = object{"cost": cost}
	}
	if d.Refused {
		failure := object{"message": "Throttled", "extensions": object{"code": "THROTTLED", "documentation": "https://shopify.dev/api/usage/rate-limits"}}
		if c := d.broken(); c != nil && c.Cost > c.Limit {
			failure = object{
				"message":    fmt.Sprintf("Query cost is %g, which exceeds the single query max cost limit (%g).", c.Cost, c.Limit),
				"extensions": object{"code": "MAX_COST_EXCEEDED", "cost": c.Cost, "maxCost": c.Limit},
			}
		}
		body["errors"] = []object{failure}
		writeJSON(w, http.StatusOK, body)
		return
	}
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	data := json.RawMessage(answer.Body.Bytes())
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	if answer.Code != http.StatusOK || !json.Valid(data) {
		w.WriteHeader(answer.Code)
		w.Write(data)
		return
	}
	w.Header().Del("Content-Length") // Next's, of the data alone
	w.Header().Set("Content-Type", "application/json")
	body["data"] = data
	writeJSON(w, http.StatusOK, body)
}

// whollyUsed returns the units in a bucket, rounded up, because what remains is cut.
func whollyUsed(c *Count) float64 { return c.Limit - math.Floor(c.Remaining) }

// restoreRate returns the units per second that leak. It takes off the rounding of a window to
// whole nanoseconds.
func restoreRate(c *Count) float64 {
	return math.Round(c.Limit/c.Window.Seconds()*1e6) / 1e6
}

// tenths is a number that JSON shows with a decimal place even if it is whole.
type tenths float64

// MarshalJSON writes 2000 as 2000.0.
func (x tenths) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(x), 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return []byte(text), nil
}
