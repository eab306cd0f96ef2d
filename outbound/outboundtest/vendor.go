package outboundtest

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// object is a JSON object.
type object = map[string]any

// vendorAPI returns an API that speaks as a vendor does, with these rules or else the
// vendor's own, and answers admitted calls with an empty JSON object.
func vendorAPI(v Vendor, rules []Rule, own ...Rule) *API {
	if len(rules) == 0 {
		rules = own
	}
	return &API{Rules: rules, Vendor: v, Next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, object{})
	})}
}

// writeJSON writes the body and the status, with the headers set so far.
func writeJSON(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // only for a float64 that is NaN or infinite, and the rules admit none
		panic("outboundtest: " + err.Error())
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	w.Write(text)
}

// setRetryAfter writes the time in whole seconds, unless it is not known.
func setRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", wholeSeconds(d))
	}
}

// whole returns units cut to a whole number, so that an answer promises no more than there
// are.
func whole(units float64) string { return strconv.FormatFloat(math.Floor(units), 'f', 0, 64) }

// rounded returns units rounded up to a whole number.
func rounded(units float64) string { return whole(math.Ceil(units)) }

// milliseconds returns a time in seconds, rounded up to a millisecond, with as many
// decimal places as it needs.
func milliseconds(d time.Duration) float64 {
	return float64(upTo(d, time.Millisecond)/time.Millisecond) / 1000
}

// upTo returns a duration rounded up to a whole number of units.
func upTo(d, unit time.Duration) time.Duration {
	if rest := d % unit; rest > 0 {
		d -= rest
		if d <= math.MaxInt64-unit {
			d += unit
		}
	}
	return d
}

// inFlight reports whether a count is one of calls in progress.
func (c *Count) inFlight() bool { return c.Window == 0 }

// pathIs returns a key that is name for matching paths, and "" otherwise.
func pathIs(name string, match func(path string) bool) func(*http.Request) string {
	return func(r *http.Request) string {
		if match(r.URL.Path) {
			return name
		}
		return ""
	}
}

// tokensOf estimates the tokens of a request as a quarter of its body's bytes.
func tokensOf(r *http.Request) float64 { return math.Ceil(float64(max(0, r.ContentLength)) / 4) }
