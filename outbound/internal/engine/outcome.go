package engine

import (
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// outcome is the result of a trip for its operations.
type outcome struct {
	*Trip
	reply   *store.Reply   // for the callers that got what they asked for
	refusal *store.Reply   // for the refused callers; nil: the store refused none
	charges []store.Charge // of all gates, or of main
	err     error          // of all operations
	over    []*pendingOp   // the operations that this trip ends
}

// errUnsent is the reason why the report of a caller that has gone was lost.
var errUnsent = errors.New("the step was not made, and no caller was left to report again")

// deliver notes what a reply says, and lets the key's next trip go. The callers get it by hand,
// without the shard's lock, which is held here.
func (sh *shard) deliver(a *Attempt, sent time.Time) outcome {
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
	r.When, r.Heard = q.offset.lay(r.State.At, now, sent, a.Arrived)
	if r.Stale || r.Untimely {
		return sh.undone(t, r)
	}
	charges := r.Charges[:min(len(r.Charges), len(t.Op.Costs))]
	t.booked = len(charges)
	q.fence = q.fence || a.Keep == 0 && t.sends > 1
	o := outcome{Trip: t, reply: r, charges: charges}
	r.Charges = nil
	if t.acts || len(charges) > 0 {
		q.refusal = refusal{}
	}
	if r.Refused {
		o.refusal = r
		if len(t.ops) > 1 { // perhaps the store did not refuse all of them
			o.reply = new(store.Reply)
			*o.reply = *r
			o.reply.Refused, o.reply.Limit, o.reply.Wait = false, -1, 0
		}
		if len(t.gates) > len(charges) {
			q.refusal.remember(t.Op.Costs[len(charges)], t, r, a.Arrived)
		}
	}
	o.divide(sh)
	sh.arrived(q)
	return o
}

// divide chooses the operations that the reply answers. Each of the first gates has a charge. If
// the store has refused the next one, divide refuses it, all that ask for as much or more, and all
// others without capacity in the reply's state. The rest go with the next trip.
func (o *outcome) divide(sh *shard) {
	booked := len(o.charges)
	var again []*pendingOp
	for i, w := range o.gates {
		w.place = i
		if i < booked {
			continue
		}
		next, cost := o.Op.Costs[booked], o.Op.Costs[i]
		w.place = refused
		switch {
		case o.refusal == nil:
			w.place = requeued
		case cost == next:
		default:
			if w.reply = refuses(o.refusal, o.Op.Limits, &cost); w.reply == nil && !covers(&cost, &next) {
				w.place = requeued
			}
		}
		if w.place == requeued {
			if !w.gone { // else its caller may be reading this
				w.reported = true
			}
			again = append(again, w)
		}
	}
	if o.over = o.ops; again != nil {
		o.over = make([]*pendingOp, 0, len(o.ops)-len(again))
		for _, w := range o.ops {
			if !w.gate || w.place != requeued {
				o.over = append(o.over, w)
			}
		}
		o.queue.pending = append(again, o.queue.pending...)
	}
	for _, w := range o.over {
		sh.end(w, nil)
	}
}

// hand answers the callers of several trips.
func (sh *shard) hand(out []outcome) {
	for i := range out {
		out[i].hand(sh)
	}
}

// hand answers the callers. From then on their operations are theirs.
func (o *outcome) hand(sh *shard) {
	if o.err != nil {
		for _, w := range o.over {
			w.fail(o.err)
		}
		return
	}
	var back []store.Charge
	left := o.charges
	for _, w := range o.over {
		n, r := 0, o.reply
		switch {
		case w == o.main:
			n = len(left)
		case w.gate && w.place >= 0:
			n = 1
		}
		if o.refusal != nil && (w == o.main || w.gate && w.place < 0) {
			r = o.refusal
		}
		mine := left[:n]
		left = left[n:]
		if w.gone {
			back = append(back, mine...)
			continue
		}
		if w.reply == nil {
			w.reply = r
		}
		w.charges = append(w.op.Into[:0], mine...)
		w.ready <- struct{}{}
	}
	if len(back) > 0 {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.pushBack(o.Trip, back)
	}
}

// pushBack returns bookings that no caller has. The shard's lock is held.
func (sh *shard) pushBack(t *Trip, charges []store.Charge) {
	op := like(&t.Op)
	op.Action, op.Back = store.Book, charges
	sh.pushOwn(t.queue, &op)
}

// undone ends a trip whose reply is Stale or Untimely. The store has done nothing, and the callers
// that are still there ask again.
func (sh *shard) undone(t *Trip, r *store.Reply) outcome {
	q := t.queue
	q.fence = t.Fence
	q.refusal = refusal{}
	for _, w := range t.ops {
		w.place = refused
		if w.gone && w.reports && !w.reported {
			sh.lose(q, errUnsent)
		}
		if w.reported {
			w.reply = new(store.Reply)
			*w.reply = *r
			w.reply.Reported = true
		}
		sh.end(w, nil)
	}
	sh.arrived(q)
	return outcome{Trip: t, reply: r, over: t.ops}
}

// anew has the operations of a trip go with the next one: nothing was done.
func (sh *shard) anew(a *Attempt) outcome {
	t, q := a.Trip, a.queue
	now := time.Now()
	if !a.Unasked || sh.reason(q, now) == nil {
		q.cause, q.caused = a.Err, now
	}
	for _, w := range t.ops {
		if w.gone && w.reports && !w.reported {
			sh.lose(q, errUnsent)
		}
		if w.gone && now.After(w.until) { // nothing else ends the engine's own operations
			w.op = nil
		}
		w.packed = w.reported
	}
	q.pending = append(t.ops, q.pending...)
	sh.arrived(q)
	return outcome{Trip: t}
}

// refuse notes that a trip has failed. The shard's lock is held.
func (sh *shard) refuse(t *Trip, err error) outcome {
	for _, w := range t.ops {
		if w.reports && !w.reported {
			sh.lose(t.queue, err)
		}
		sh.end(w, err)
	}
	sh.arrived(t.queue)
	return outcome{Trip: t, err: err, over: t.ops}
}
