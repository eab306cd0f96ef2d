package outbound

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// step is one operation on a bucket, in costs. A store is asked for it in what the costs
// take of each limit.
type step struct {
	store.Op // without what resolve adds by the limits in force
	reports  []reports.Report
	costs    []Cost
	back     []*call
	limits   []Limit // to set; none: those that the bucket was made with

	freed int  // slots that back frees
	seats bool // each of costs needs a slot
	inJob bool // costs are of further requests of jobs, which need no slots
	waits bool // the caller waits: settles ride along
}

// reply is the result of a step.
type reply struct {
	store.Reply
	force *inForce // the limits that it counts by

	inFlight  *Limit // the limit on calls in flight, or nil
	used      int    // calls in flight, if there is
	slots     bool   // each of Charges has a slot of the calls in flight
	noSlot    bool   // refused because there is none
	collected int    // calls in flight whose permits were dropped without Done

	missed []store.Charge // behind Charges, and without a slot
	slept  time.Duration  // since the reply came, for slots
}

// decided returns the limits that have decided, and the state by them: those in force, or a share
// of them.
func (r *reply) decided() (*limitSet, *store.State) {
	set := &r.force.limitSet
	if len(r.Share) == 0 || len(r.Share) != len(set.law) {
		return set, &r.State
	}
	s := r.State
	for i := range set.law {
		others := max(0, set.law[i].Capacity-r.Share[i].Capacity)
		s.Level[i] = max(0, s.Level[i]-others)
	}
	return &limitSet{law: r.Share, calendar: set.calendar, parts: set.parts}, &s
}

// trip is a step as a store gets it, with memory for what that points to.
type trip struct {
	op      store.Op
	reports []store.Report
	costs   []store.Units
	back    []store.Charge
}

var trips = sync.Pool{New: func() any { return new(trip) }}

// done frees the memory for another step.
func (t *trip) done() {
	clear(t.reports[:cap(t.reports)])
	*t = trip{reports: t.reports[:0], costs: t.costs[:0], back: t.back[:0]}
	trips.Put(t)
}

// resolve writes down what the step takes of the limits in force, up to the first cost above a
// capacity.
func (t *trip) resolve(key string, s *step, f *inForce) {
	t.reports, t.costs, t.back = t.reports[:0], t.costs[:0], t.back[:0]
	for i := range s.reports {
		r := &s.reports[i]
		t.reports = append(t.reports, r.Report)
		to := &t.reports[i]
		if r.Charge != nil {
			to.Charge = f.align(r.Charge, r.By, (*Cost)(&r.Cost))
		}
		switch r.Kind {
		case store.Settled:
			to.Used = f.units((*Cost)(&r.Used))
		case store.Remaining:
			for j := range f.law {
				to.Used[j] = r.Used[f.law[j].Unit]
			}
		}
	}
	for i := range s.costs {
		if s.Action == store.Book && f.checkBeside(key, &s.costs[i], s.Headroom) != nil {
			break
		}
		t.costs = append(t.costs, f.units(&s.costs[i]))
	}
	for _, k := range s.back {
		t.back = append(t.back, *f.align(&k.charge[0], k.by(), &k.cost[0]))
	}
	t.op = s.Op
	t.op.Limits, t.op.Number, t.op.Reports, t.op.Costs, t.op.Unused = f.law, f.number, t.reports, t.costs, t.back
	t.op.Slots = s.Slots && f.parts
}

// settled marks the charges of the reports as settled. The reply does not say how much the key has
// returned.
func (s *step) settled() {
	for i := range s.reports {
		if r := &s.reports[i]; r.Kind == store.Settled && !r.Charge.Settled && r.By != nil {
			if n := unitsOf(r.By, (*Cost)(&r.Used)); n != r.Charge.N {
				r.Charge.N, r.Charge.Settled = n, true
			}
		}
	}
}
