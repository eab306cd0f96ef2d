package redisstore

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// refusal remembers that a bucket had no room for a call, so that those who ask
// again before it can have some need no trip to hear the same.
type refusal struct {
	cost   leak.Units
	limits []leak.Limit // of the bucket that asked
	stamp  int64
	until  time.Time // when the call could go; zero: nothing is remembered
	stale  time.Time // when it is to be asked again all the same
	result leak.Reply
}

// longest is how long a refusal is remembered at most: what others give back, or
// the end of a hold, is heard of after that.
const longest = time.Second

// isGate reports whether an operation asks for one call now, and nothing else.
func isGate(op *leak.Op) bool {
	return op.Action == leak.Book && len(op.Costs) == 1 && op.Wait == 0 && op.Horizon == 0 && op.Move == nil && op.After == 0 && op.Claim == 0
}

func (f *refusal) remember(c leak.Units, of *request, r *leak.Reply, now time.Time) {
	*f = refusal{cost: c, limits: of.limits, stamp: of.stamp, until: r.When.Add(r.Wait), stale: now.Add(longest), result: *r}
}

// answer writes the refusal of a call that takes as much or more, and reports
// whether it is remembered.
func (f *refusal) answer(op *leak.Op, now time.Time, r *leak.Reply) bool {
	if f.until.IsZero() || !isGate(op) || len(op.Reports)+len(op.Back) > 0 || f.stamp != op.Stamp || !same(f.limits, op.Limits) {
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
func covers(c, d *leak.Units) bool {
	for i := range c {
		if !(c[i] >= d[i]) {
			return false
		}
	}
	return true
}

// same reports whether both are the same limits, of one bucket or of two that were made
// alike.
func same(a, b []leak.Limit) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}
