package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// MaxOps is the largest number of operations in one trip, and of costs that one trip books.
const MaxOps = 4096

// compose makes a trip of the first operations that have gathered for a key. It returns nil if
// there are none. The shard's lock is held, so that no caller goes while compose reads its
// operation.
//
// Operations go together if they count by the same limits, and if one reply answers all of them:
// any number of gates, or one other booking, and any number of looks. An operation that meters,
// resumes or replaces goes by itself: a look that went with a Replace would get the new limits.
func (p *pipeline) compose(q *keyQueue, now time.Time) *Trip {
	sh := p.shard
	t := &Trip{Key: &q.Key, queue: q, ops: q.spare, began: now, until: now.Add(sh.config.forTrips())}
	if !q.until.IsZero() {
		t.until, q.until = q.until, time.Time{}
	}
	taken, slots := 0, false
	for _, w := range q.pending {
		if w.op == nil { // its caller has gone
			taken++
			continue
		}
		op := w.op
		if len(t.ops) == 0 {
			t.Op = like(op)
		} else if taken == MaxOps || !together(&t.Op, op) ||
			op.Action > store.Book || t.main != nil && t.main.op.Action > store.Book {
			break
		}
		if isGate(op) {
			if t.main != nil {
				break
			}
			w.gate = true
			t.gates++
		} else if !onlyLooks(op) {
			if t.main != nil || t.gates > 0 {
				break
			}
			t.main = w
		}
		taken++
		t.ops = append(t.ops, w)
		t.Op.Periods = op.Periods // the latest are those of the latest time
		slots = slots || op.Slots
	}
	rest := copy(q.pending, q.pending[taken:])
	clear(q.pending[rest:])
	q.pending = q.pending[:rest]
	if len(t.ops) == 0 {
		return nil
	}
	t.join()
	t.Op.Slots = slots
	t.Seq = sh.seq.Add(1)
	t.Clock = q.offset.least(now)
	t.Fence = q.fence || p.server.ill.Load() // so that it writes: a server that only reads is not up
	q.fence = false
	t.Last = q.record.seq
	sh.config.Carrier.Compose(t)
	return t
}

// join makes one operation of all operations of the trip. It copies everything that callers may
// change once they have gone.
func (t *Trip) join() {
	op := &t.Op
	op.Action = store.Book
	if t.main != nil {
		*op = *t.main.op
		op.Costs = slices.Clone(op.Costs[:min(len(op.Costs), MaxOps)])
		op.Replacement = slices.Clone(op.Replacement)
		op.Reports, op.Unused, op.Into = nil, nil, nil
		if op.Move != nil {
			c := *op.Move
			t.queue.record.sift(&c)
			op.Move = &c
		}
	} else if t.gates > 0 {
		op.Costs = slices.Grow(t.one[:0], t.gates)
	}
	for _, w := range t.ops {
		if w.gate {
			op.Costs = append(op.Costs, w.op.Costs[0])
			if t.main == nil {
				op.After, op.Wait = max(op.After, w.op.After), max(op.Wait, w.op.Wait)
				op.Horizon = op.Wait
			}
		}
		if w.packed { // its reports were in an earlier trip, which did not get as far as its booking
			continue
		}
		w.packed = true
		for _, r := range w.op.Reports {
			if r.Charge != nil {
				c := *r.Charge
				t.queue.record.sift(&c)
				r.Charge = &c
			}
			op.Reports = append(op.Reports, r)
		}
		op.Unused = append(op.Unused, w.op.Unused...)
	}
	for i := range op.Unused {
		t.queue.record.sift(&op.Unused[i])
	}
	slices.SortStableFunc(op.Unused, func(a, b store.Charge) int { return cmp.Compare(a.Place, b.Place) })
	t.acts = t.main != nil || len(op.Reports)+len(op.Unused) > 0
}

// like returns an operation that does nothing, of the process and by the limits of op.
func like(op *store.Op) store.Op {
	return store.Op{Limits: op.Limits, Periods: op.Periods, Number: op.Number, Base: op.Base, Age: op.Age}
}

// together reports whether two operations count by the same limits and bring the same.
func together(a, b *store.Op) bool {
	return a.Number == b.Number && a.Base == b.Base && store.Equal(a.Limits, b.Limits)
}

// isGate reports whether an operation asks for one call now, or as soon as a reply is here, and
// nothing else.
func isGate(op *store.Op) bool {
	return op.Action == store.Book && len(op.Costs) == 1 && op.Wait <= 2*op.After && op.Horizon == 0 && op.Move == nil && op.Claim == 0 && op.Headroom == 0 && op.Weight == 0
}

// onlyLooks reports whether an operation does nothing but look and report.
func onlyLooks(op *store.Op) bool {
	return op.Action == store.Look || op.Action == store.Book && len(op.Costs) == 0 && op.Move == nil
}

// covers reports whether a call of cost c waits at least as long as one of d.
func covers(c, d *store.Units) bool {
	for i := range c {
		if !(c[i] >= d[i]) {
			return false
		}
	}
	return true
}
