package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// refusal remembers that a bucket had no capacity for a call. Callers that ask again before it can
// have get the same answer without a trip.
type refusal struct {
	cost   store.Units
	limits []store.Limit // of the bucket that asked
	number int64         // of the limits, as the bucket knew it
	until  time.Time     // when the call could leave; zero: there is no refusal to remember
	stale  time.Time     // when the store is asked again all the same
	reply  store.Reply
}

// longest is how long a refusal is remembered at most. So callers learn within a second that other
// calls have returned units, or that a hold has ended.
const longest = time.Second

func (f *refusal) remember(c store.Units, of *Trip, r *store.Reply, now time.Time) {
	*f = refusal{
		cost: c, limits: of.Op.Limits, number: of.Op.Number,
		until: r.When.Add(r.Wait), stale: now.Add(longest), reply: *r,
	}
}

// answer writes the refusal of a call that costs as much as the remembered one, or more. It reports
// whether it has done so.
func (f *refusal) answer(op *store.Op, now time.Time, r *store.Reply) bool {
	if f.until.IsZero() || !isGate(op) || len(op.Reports)+len(op.Back) > 0 || f.number != op.Number ||
		op.Slots && f.reply.State.Parts == nil || !store.Equal(f.limits, op.Limits) {
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
