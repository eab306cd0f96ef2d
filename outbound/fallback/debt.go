package fallback

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// debt is what calls that count by one set of limits have spent without the store. Buckets of
// one key that were made with different limits have a debt each.
type debt struct {
	limits  []leak.Limit  // a bucket's own, or those that were set for all
	periods []leak.Period // of limits, as the latest call has told
	stamp   int64         // of limits
	unset   bool          // limits were set, and are no longer: the next call tells a bucket's own
	share   []leak.Limit  // what this worker may use of limits; nil: not computed yet
	since   time.Duration // when the outage began in which share was used last
	spent   perUnit       // what the store is not charged with yet
	spentAt time.Duration // when spent last changed
}

// counts reports whether an operation counts by the limits of the debt.
func (d *debt) counts(op *leak.Op) bool {
	return !d.unset && d.stamp == op.Stamp && leak.Equal(d.limits, op.Limits)
}

// hear has a key learn by which limits a call counts, and what time it is, and returns the debt
// under them. It returns nil if a debt waits for a bucket's own limits, and the call counts by
// others.
func (k *degradedKey) hear(op *leak.Op) *debt {
	if op.Stamp != 0 && slices.ContainsFunc(k.debts, func(d *debt) bool { return d.unset }) {
		return nil
	}
	return k.debtOf(op)
}

// debtOf returns the key's debt under the limits of an operation, and makes it if there is
// none.
func (k *degradedKey) debtOf(op *leak.Op) (of *debt) {
	for _, d := range k.debts {
		if d.unset && op.Stamp == 0 {
			d.limits, d.unset = op.Limits, false
		}
		if d.counts(op) {
			d.periods, of = op.Periods, d
		}
	}
	if of != nil {
		return of
	}
	d := &debt{limits: op.Limits, periods: op.Periods, stamp: op.Stamp}
	if len(k.debts) == leak.Max { // a key has no more limits than that
		d.spent, d.spentAt = k.debts[0].spent, k.debts[0].spentAt
		k.debts = slices.Delete(k.debts, 0, 1)
	}
	k.debts = append(k.debts, d)
	return d
}

// perUnit has an amount for each unit that limits can count.
type perUnit [leak.MaxUnit + 1]float64

// add adds n, or with a sign of -1 subtracts it. Where several limits count one unit, the
// largest number counts.
func (p *perUnit) add(limits []leak.Limit, n *leak.Units, sign float64) {
	var most perUnit
	for i := range limits {
		u := limits[i].Unit
		most[u] = max(most[u], n[i])
	}
	for u := range p {
		p[u] += sign * most[u]
	}
}

// subtract subtracts q, and leaves at least 0.
func (p *perUnit) subtract(q *perUnit) {
	for u := range p {
		p[u] = max(0, p[u]-q[u])
	}
}

// spend counts what the operation has spent here, less what it has given back. born is the
// life of the degraded key.
func (d *debt) spend(op *leak.Op, r *leak.Reply, born, t time.Duration) {
	was := d.spent
	for i := range r.Charges {
		d.spent.add(d.share, &r.Charges[i].N, 1)
	}
	if op.Action == leak.Meter {
		d.spent.add(d.share, &op.Costs[0], 1)
	}
	for i := range op.Reports {
		if s := &op.Reports[i]; s.Kind == leak.Settled && !s.Charge.Settled {
			d.settle(s, born)
		}
	}
	if op.Move != nil && len(r.Charges) > 0 { // the charge that was moved counts once
		d.spent.add(d.share, &r.Charges[0].N, -1)
	}
	var back perUnit
	for i := range op.Back {
		if c := &op.Back[i]; c.Born == born && !c.Settled {
			back.add(d.share, &c.N, 1)
		}
	}
	d.spent.subtract(&back)
	if d.spent != was {
		d.spentAt = t
	}
}

// settle counts what a call has cost beyond its charge. What it has cost less comes back
// only if the call was admitted here.
func (d *debt) settle(s *leak.Report, born time.Duration) {
	var more, less leak.Units
	for i := range d.share {
		over := s.Used[i] - s.Charge.N[i]
		more[i], less[i] = max(0, over), max(0, -over)
	}
	d.spent.add(d.share, &more, 1)
	if s.Charge.Born == born {
		d.spent.add(d.share, &less, -1)
	}
}

// owed returns what the store is to be charged with at time t: of each limit at most its
// capacity, and nothing if the limit has had the time to drain since the last units were
// spent. Otherwise owed subtracts nothing that has leaked: the store's level has leaked in
// the same time, which must not count twice. Of a window or a calendar it is at most what is
// still in the share, as a look at it tells: the rest has come back to the store as well.
func (k *degradedKey) owed(d *debt, t time.Duration, is *leak.Reply) (n leak.Units) {
	for i := range d.limits {
		l := &d.limits[i]
		if drained := l.Rate*(t-d.spentAt).Seconds() >= l.Capacity; drained {
			continue
		}
		n[i] = min(d.spent[l.Unit], l.Capacity)
		if units, ok := k.inPeriod(l); l.Kind.Calendar() && ok {
			n[i] = min(n[i], units)
		} else if l.Kind != leak.Leaky && i < len(d.share) {
			n[i] = min(n[i], is.State.Level[i].Level)
		}
	}
	return n
}

// debtOp returns the operation that tells the store of the outage: a debt, and, unless the
// store was told, a hold that is in force. It is nil if there is nothing to tell.
func (k *degradedKey) debtOp(d *debt, t time.Duration, told bool) *leak.Op {
	is := k.peek(d)
	op := &leak.Op{Limits: d.limits, Periods: d.periods, Stamp: d.stamp}
	n := k.owed(d, t, &is)
	if n != (leak.Units{}) {
		op.Action, op.Costs = leak.Meter, []leak.Units{n}
	}
	held := max(0, is.State.Rem)
	switch r := k.refused; {
	case told:
	case r != nil && r != k.reported:
		refused := r.Report
		refused.Wait = max(1, held) // what is left of the hold; 0 would say that the API named no time
		op.Reports = append(op.Reports, refused)
	case held > 0:
		op.Reports = append(op.Reports, leak.Report{Kind: leak.Held, Wait: held})
	}
	if op.Action == leak.Peek && len(op.Reports) == 0 {
		return nil
	}
	if d.stamp == 0 && timely(op, unix()).Stale {
		leaveOut(op, &n)
	}
	if len(op.Reports) > 0 && op.Reports[0].Charge != nil {
		charge := *op.Reports[0].Charge
		if was := k.refused.limits; !leak.Equal(was, op.Limits) {
			from := make([]int, len(op.Limits))
			for i := range from {
				from[i] = leak.Find(was, &op.Limits[i])
			}
			charge.Follow(was, op.Limits, from)
		}
		op.Reports[0].Charge = &charge
	}
	return op
}

// leaveOut leaves the calendars that are charged with nothing out of an operation: their periods
// are over, and nobody may ever tell others. If it has no other limits they stay.
func leaveOut(op *leak.Op, n *leak.Units) {
	var left leak.Op
	var units leak.Units
	for i := range op.Limits {
		if n[i] > 0 || !op.Limits[i].Kind.Calendar() {
			units[len(left.Limits)] = n[i]
			left.Limits = append(left.Limits, op.Limits[i])
			left.Periods = append(left.Periods, op.Periods[min(i, len(op.Periods)):min(i+1, len(op.Periods))]...)
		}
	}
	if len(left.Limits) == 0 {
		return
	}
	op.Limits, op.Periods = left.Limits, left.Periods
	if op.Action == leak.Meter {
		op.Costs[0] = units
	}
}
