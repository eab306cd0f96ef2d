package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// errUnsent is the reason why the report of a caller that has gone was lost.
var errUnsent = errors.New("the step was not made, and no caller was left to report again")

// deliver divides a trip's reply among its operations, and lets the key's next trip go. Each of the
// first gates has a charge. If the store has refused the next one, deliver refuses it, all that ask
// for as much or more, and all others without capacity in the reply's state. The rest go with the
// next trip.
func (sh *shard) deliver(a *Attempt, sent time.Time) {
	t, q, r := a.Trip, a.queue, &a.Reply
	q.cause = nil
	now := a.Now
	if now == 0 {
		now = r.State.At
	}
	sh.compare(a, now)
	if r.Corrupt || a.Doubt != nil {
		sh.report(store.EventCorrupt, q.Bucket, a.Doubt)
	}
	r.When, r.Received = q.offset.lay(r.State.At, now, sent, a.Arrived)
	if r.Stale || r.Untimely {
		sh.undone(t, r)
		return
	}
	charges := r.Charges[:min(len(r.Charges), len(t.Op.Costs))]
	r.Charges = nil
	t.booked = len(charges)
	q.fence = q.fence || a.Keep == 0 && t.sends > 1
	if t.acts || t.booked > 0 {
		q.refusal = refusal{}
	}
	rest := r // the reply to the operations that are not refused
	if r.Refused && len(t.ops) > 1 {
		rest = new(store.Reply)
		*rest = *r
		rest.Refused, rest.Limit, rest.Wait = false, -1, 0
	}
	if r.Refused && t.gates > t.booked && (r.Limits == nil || store.Equal(r.Limits, t.Op.Limits)) { // otherwise the caller asks again by the limits in force
		q.refusal.remember(t.Op.Costs[t.booked], t, r, a.Arrived)
	}
	var again []*pendingOp
	var back []store.Charge // of callers that have gone
	gates := 0
	for _, w := range t.ops {
		reply, mine := rest, []store.Charge(nil)
		if w == t.main {
			reply, mine = r, charges
		} else if w.gate {
			if gates < t.booked {
				mine = charges[gates : gates+1]
			} else {
				reply = t.refuses(r, gates)
			}
			gates++
		}
		if reply == nil {
			if !w.gone { // else its caller may be reading this
				w.reported = true
			}
			again = append(again, w)
			continue
		}
		if w.gone {
			back = append(back, mine...)
		}
		sh.end(w, reply, mine, nil)
	}
	if len(again) > 0 {
		q.pending = append(again, q.pending...)
	}
	sh.arrived(t)
	if len(back) > 0 {
		sh.pushBack(t, back)
	}
}

// refuses returns the refusal of a gate that has no charge. It returns nil if it is unknown whether
// the gate has capacity.
func (t *Trip) refuses(r *store.Reply, gate int) *store.Reply {
	next, cost := &t.Op.Costs[t.booked], &t.Op.Costs[gate]
	switch {
	case !r.Refused:
		return nil
	case *cost == *next:
		return r
	}
	if other := refuses(r, t.Op.Limits, cost, t.Op.Wait); other != nil {
		return other
	}
	if covers(cost, next) {
		return r
	}
	return nil
}

// pushBack returns bookings that no caller has.
func (sh *shard) pushBack(t *Trip, charges []store.Charge) {
	op := like(&t.Op)
	op.Unused = charges
	sh.gather(&pendingOp{op: &op, queue: t.queue, until: time.Now().Add(sh.config.Timeout), gone: true})
}

// undone ends a trip whose reply is Stale or Untimely. The store has done nothing, and the callers
// that are still there ask again.
func (sh *shard) undone(t *Trip, r *store.Reply) {
	t.queue.fence = t.queue.fence || t.Fence || t.sends > 1
	t.queue.refusal = refusal{}
	for _, w := range t.ops {
		if w.gone {
			sh.lose(w, errUnsent)
		}
		reply := r
		if w.reported {
			reply = new(store.Reply)
			*reply = *r
			reply.Reported = true
		}
		sh.end(w, reply, nil, nil)
	}
	sh.arrived(t)
}

// giveUp ends a trip whose attempt failed, and need not be made again. An attempt before, or next
// to it, may still arrive.
func (sh *shard) giveUp(v Verdict, a *Attempt) {
	t, q := a.Trip, a.queue
	q.fence = q.fence || t.Fence || t.sends > 1
	if a.Reply.Corrupt {
		sh.report(store.EventCorrupt, q.Bucket, nil)
	}
	if v == Requeue {
		if q.record.older(a) {
			sh.lost(q, errOlder)
		}
		sh.goAgain(a)
	} else {
		sh.refuse(t, a.Err)
	}
}

// goAgain has the operations of a trip go with the next one: nothing was done.
func (sh *shard) goAgain(a *Attempt) {
	t, q := a.Trip, a.queue
	now := time.Now()
	if !a.Unasked && !t.unserved || sh.reason(q, now, 3) == nil {
		q.cause, q.caused = a.Err, now
	}
	for _, w := range t.ops {
		if w.gone {
			sh.lose(w, errUnsent)
			if now.After(w.until) { // nothing else ends the engine's own operations
				w.op = nil
			}
		}
		w.packed = w.reported
	}
	q.pending = slices.Concat(t.ops, q.pending)
	sh.arrived(t)
	if t.unserved { // a server that only reads is down once the time of its first trip is up
		q.until = t.until
	}
}
