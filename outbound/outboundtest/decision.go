package outboundtest

import (
	"math"
	"net/http"
	"time"
)

// Vendor answers one call as a certain vendor does, in place of the plain answer: it
// writes the vendor's headers and, for a refused call, its status and body. The
// functions that return an API, such as GitHub, set one. Write one for an API that is
// not among them.
//
// next gives the plain answer with the headers set so far: that of API.Next to an
// admitted call, and 429 with a text and a Retry-After to a refused one. A Vendor that
// only adds headers sets them and calls next. The API calls a Vendor once for each call,
// after the Latency and possibly from several goroutines; the Vendor owns d.
type Vendor func(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler)

// Decision is what an API decided about one call, and its counts at that moment, which is the
// call's arrival. A later answer still describes it.
type Decision struct {
	At         time.Time     // the moment, in UTC, on the API's clock (see API.Skew); the answer's Date
	Refused    bool          // whether a rule was broken
	RetryAfter time.Duration // until the call would be admitted if no other comes before; 0 if unknown
	Counts     []Count       // of the rules that count this call, in their order; a Penalty only while it refuses
}

// Count is what one rule had counted when it decided about a call, that call included
// if it was admitted.
type Count struct {
	Unit       string        // "calls", or the name given to Rule.Of
	Key        string        // the key of Rule.By; "" without
	Window     time.Duration // the rule's; the draining time of a full LeakyBucket; 0 for InFlight
	Limit      float64       // units
	Remaining  float64       // units that the rule would admit now, at least 0, rounded within 1e-10 of the limit
	Reset      time.Duration // until Remaining would be Limit without further calls; 0 for InFlight
	Cost, Used float64       // units that the call asked for, and units charged: see Rule.Settle
	Broken     bool          // whether this rule refused the call
	RetryAfter time.Duration // until this rule would admit the call; 0 if unknown
}

// first returns the first of the counts that is wanted, or nil.
func (d *Decision) first(wanted func(*Count) bool) *Count {
	for i := range d.Counts {
		if wanted(&d.Counts[i]) {
			return &d.Counts[i]
		}
	}
	return nil
}

// broken returns the count that the call has to wait for longest, or nil.
func (d *Decision) broken() *Count {
	var worst *Count
	for i := range d.Counts {
		c := &d.Counts[i]
		if c.Broken && (worst == nil || worst.RetryAfter != 0 && (c.RetryAfter == 0 || c.RetryAfter > worst.RetryAfter)) {
			worst = c
		}
	}
	return worst
}

// remaining returns what is left of a limit, with the rounding of sums taken off. Else three
// calls that are left could look like 2.99…, and an answer would say 2.
func remaining(limit, used float64) float64 {
	left := max(0, limit-used)
	if whole := math.Round(left); math.Abs(left-whole) <= limit*sharp {
		return whole
	}
	return left
}
