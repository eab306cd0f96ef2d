package engine

import (
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
	reply  leak.Reply
}

// longest is how long a refusal is remembered at most: what others give back, or
// the end of a hold, is heard of after that.
const longest = time.Second

func (f *refusal) remember(c leak.Units, of *Trip, r *leak.Reply, now time.Time) {
	*f = refusal{cost: c, limits: of.Op.Limits, stamp: of.Op.Stamp, until: r.When.Add(r.Wait), stale: now.Add(longest), reply: *r}
}

// answer writes the refusal of a call that takes as much or more, and reports
// whether it is remembered.
func (f *refusal) answer(op *leak.Op, now time.Time, r *leak.Reply) bool {
	if f.until.IsZero() || !isGate(op) || len(op.Reports)+len(op.Back) > 0 || f.stamp != op.Stamp || !leak.Equal(f.limits, op.Limits) {
		return false
	}
	if !now.Before(f.until) || !now.Before(f.stale) {
		f.until = time.Time{}
		return false
	}
	if !covers(&op.Costs[0], &f.cost) {
		return false
	}
	*r = f.reply
	r.Wait = f.until.Sub(now)
	return true
}
