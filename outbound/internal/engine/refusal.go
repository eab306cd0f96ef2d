package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// refusal remembers that a bucket had no room for a call. Callers who ask again
// before there can be room get the same answer without a trip.
type refusal struct {
	cost   leak.Units
	limits []leak.Limit // the limits of the bucket that asked
	stamp  int64
	until  time.Time // time at which the call could go; zero: there is no refusal to remember
	stale  time.Time // time from which the store is asked again all the same
	reply  leak.Reply
}

// longest is how long a refusal is remembered at most. So after a second the
// callers learn of room that others have given back, and of the end of a hold.
const longest = time.Second

func (f *refusal) remember(c leak.Units, of *Trip, r *leak.Reply, now time.Time) {
	*f = refusal{cost: c, limits: of.Op.Limits, stamp: of.Op.Stamp, until: r.When.Add(r.Wait), stale: now.Add(longest), reply: *r}
}

// answer writes the refusal of a call that costs as much as the remembered one,
// or more. It reports whether it has done so.
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
