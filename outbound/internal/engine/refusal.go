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
	until  time.Time     // when the call could leave, or zero
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

// answer writes the refusal of a call that costs as much as the remembered one. If the reply's
// state suffices, it also writes that of a call that costs more. It reports whether it has done so.
func (f *refusal) answer(op *store.Op, now time.Time, r *store.Reply) bool {
	if f.until.IsZero() || !isGate(op) || len(op.Reports)+len(op.Unused) > 0 || f.number != op.Number ||
		op.Slots && f.reply.State.Parts == nil || !store.Equal(f.limits, op.Limits) {
		return false
	}
	if !now.Add(op.Wait).Before(f.until) || !now.Before(f.stale) {
		f.until = time.Time{}
		return false
	}
	if cost := &op.Costs[0]; *cost == f.cost {
		*r = f.reply
	} else if other := refuses(&f.reply, f.limits, cost, op.Wait); other != nil && covers(cost, &f.cost) {
		*r = *other
	} else {
		return false
	}
	r.Wait = r.When.Add(r.Wait).Sub(now)
	return true
}

// refuses returns the refusal of a call of this cost that waits so long, by the state of another
// refusal. It returns nil if the call has capacity, or if that is unknown.
func refuses(r *store.Reply, limits []store.Limit, cost *store.Units, most time.Duration) *store.Reply {
	if r.Limits != nil { // the Op did not know those in force
		limits = r.Limits
	}
	s := &r.State
	if !s.Complete(limits) {
		return nil
	}
	w, which, booked := s.Wait(limits, cost)
	wait := s.Real(w)
	if wait <= most && booked {
		return nil
	}
	other := *r
	other.Limit, other.Wait = which, wait
	return &other
}
