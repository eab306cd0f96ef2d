// Package estimate predicts the cost of calls whose full cost is known only afterwards, such as the
// tokens of a language model.
//
// # Limits of a language model
//
// The APIs of OpenAI and those that are like it count input and output together, and Anthropic's
// counts them separately:
//
//	OpenAI:    PerMinute(500), Window(0.95*30_000, time.Minute).Of(1, "tokens")
//	Anthropic: PerMinute(50), Window(30_000, time.Minute).Of(1, "input tokens"),
//	           Window(0.95*8_000, time.Minute).Of(2, "output tokens")
//
// The numbers depend on the model and the account. Space requests evenly: an API may enforce the
// limit of a minute within a second. One that counts tenths of the minute refused 38 of 82 calls
// under a Window of requests, and none of PerMinute. Tokens are counted in buckets that refill
// steadily, or by the minute. A window of a minute exceeds neither, and a call may take all of it.
// PerMinute would need a Burst of the largest call, and lose as much of each minute. Leave 5 %
// where the tokens are known afterwards, because some calls use more than their estimate. A quota
// of a day is an [outbound.Daily] if it is reset at a known midnight, and a Window otherwise.
package estimate

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Average predicts the cost of calls whose full cost is known only afterwards, such as the tokens
// of a response. It adds the moving average of what earlier calls cost beyond the known part.
// Acquire Cost(known), settle what the call really cost, the request and the known part included,
// and pass both to Learn:
//
//	e := estimate.Average{Bucket: bucket, First: outbound.Cost{tokens: 300}}
//	…
//	p, err := bucket.Acquire(ctx, e.Cost(known))
//	…
//	p.Settle(used)
//	e.Learn(known, used)
//
// Too low an estimate sends calls that the API refuses. If it is too high, the difference is
// returned too late for other calls. A call that waits in a queue keeps its estimate. So
// all calls that come before the first Learn cost First, even if they leave after it.
//
// The zero Average is ready to use, and an Average is safe for concurrent use. Change no field
// after the first use.
type Average struct {
	// Bucket is the bucket that the calls acquire from. No estimate is then above the capacity of a
	// limit that is in force. Calls that really cost more are still admitted, and settle the rest;
	// only the known part may be too large. If it is nil, estimates have no bound, and once the
	// average is above a capacity every call is [outbound.ErrTooLarge].
	Bucket *outbound.Bucket
	// First is what the calls before the first Learn cost beyond their known part. Without it, a
	// known part of 0 in the bucket's first unit is [outbound.ErrInvalid] until the first Learn; if
	// it is [outbound.Free], all calls until then are admitted immediately, unpaced. Invalid numbers
	// count as 0.
	First outbound.Cost
	// Weight is how much the newest call counts, above 0 and at most 1. If it is another number, it
	// is 1/20.
	Weight float64

	mu    sync.Mutex // protects what follows
	calls int
	rest  outbound.Cost
}

// Cost returns what a call with this known part is expected to cost.
func (e *Average) Cost(known outbound.Cost) outbound.Cost {
	e.mu.Lock()
	rest := e.rest
	if e.calls == 0 && real(e.First) {
		rest = e.First
	}
	e.mu.Unlock()
	most := outbound.Cost{mostUnits, mostUnits, mostUnits, mostUnits}
	for _, l := range e.Bucket.Limits() {
		if l.Of(0, "").Lease(lease) != outbound.InFlight(int(l.Capacity)) {
			most[l.Unit] = min(most[l.Unit], l.Capacity)
		}
	}
	for i, n := range known {
		known[i] = max(n, min(n+rest[i], most[i]))
	}
	return known
}

// lease is the default of an InFlight.
const lease = 30 * time.Second

// mostUnits is the largest capacity of a limit.
const mostUnits = 1e12

// real reports whether a call can really have this cost.
func real(c outbound.Cost) bool {
	for _, n := range c {
		if !(n >= 0 && n <= mostUnits || n == outbound.Free) {
			return false
		}
	}
	return true
}

// Learn takes in what a call has really cost. Numbers that are no cost are ignored.
func (e *Average) Learn(known, used outbound.Cost) {
	if !real(known) || !real(used) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	weight := e.Weight
	if !(weight > 0 && weight <= 1) {
		weight = 1. / 20
	}
	e.calls++
	weight = max(weight, 1/float64(e.calls)) // at first, the mean of what there is
	for i := range used {
		e.rest[i] += weight * (max(0, used[i]-known[i]) - e.rest[i])
	}
}
