package redisstore

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// refusal remembers that a bucket had no room for a call, so that those who ask
// again before it can have some need no trip to hear the same.
type refusal struct {
	cost   outbound.Cost
	limits []outbound.Limit // of the bucket that asked
	until  time.Time        // when the call could go; zero: nothing is remembered
	stale  time.Time        // when it is to be asked again all the same
	result outbound.Result
}

// longest is how long a refusal is remembered at most: what others give back, or
// the end of a hold, is heard of after that.
const longest = time.Second

// isGate reports whether an operation asks for one call now, and nothing else.
func isGate(op *outbound.Op) bool {
	return op.Action == outbound.Book && len(op.Costs) == 1 && op.Wait == 0 && op.Horizon == 0 && op.Move == nil && op.After == 0 && op.Claim == 0
}

func (f *refusal) remember(c outbound.Cost, limits []outbound.Limit, r *outbound.Result, now time.Time) {
	*f = refusal{cost: c, limits: limits, until: r.When.Add(r.Wait), stale: now.Add(longest), result: *r}
}

// answer writes the refusal of a call that takes as much or more, and reports
// whether it is remembered.
func (f *refusal) answer(op *outbound.Op, now time.Time, r *outbound.Result) bool {
	if f.until.IsZero() || !isGate(op) || len(op.Reports)+len(op.Charges) > 0 || !same(f.limits, op.Limits) {
		return false
	}
	if !now.Before(f.until) || !now.Before(f.stale) {
		f.until = time.Time{}
		return false
	}
	if !covers(&op.Costs[0], &f.cost) {
		return false
	}
	*r = f.result
	r.Wait = f.until.Sub(now)
	return true
}

// covers reports whether a call of cost c waits at least as long as one of d.
func covers(c, d *outbound.Cost) bool {
	for i := range c {
		if !(c[i] >= d[i]) {
			return false
		}
	}
	return true
}

// same reports whether both are the same limits, of one bucket or of two that were made
// alike.
func same(a, b []outbound.Limit) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}
