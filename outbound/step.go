package outbound

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// step is one operation on a bucket, in costs. A store is asked for it in what the costs
// take of each limit, as a [leak.Op].
type step struct {
	action  leak.Action
	reports []report
	costs   []Cost
	wait    time.Duration
	horizon time.Duration
	after   time.Duration
	claim   float64
	back    []*leak.Charge
	move    *leak.Charge
	limits  []Limit // to set; none: nobody's are set any more
	into    []leak.Charge

	freed   int  // slots that back frees
	brings  int  // slots that move has, for the first of costs
	inJob   bool // costs are of further requests of jobs, which need no slots
	waits   bool // the caller waits: settles ride along
	returns bool // the caller comes back when it is told
	logs    bool // the reply is to have the logs of windows, where they are in this process
}

// report is what a call says about itself, in costs.
type report struct {
	leak.Report
	used Cost // Settled: what it really cost; Left: what remains, or below 0
	cost Cost // Settled: what it was to take
}

// reply is what has become of a step.
type reply struct {
	leak.Reply
	force *inForce   // the limits that it counts by
	bad   *CostError // why the next of costs can never go; nil: it can

	inFlight  *inFlight // the limit on calls at once; nil: there is none
	used      int       // calls at once, if there is
	slots     bool      // each of Charges has taken a place among the calls at once
	noSlot    bool      // refused because there is none
	collected int       // calls at once whose permits were dropped without Done
	extended  bool      // the hold lasts longer than was known here
}

// decided returns the limits that have decided, and the state by them: those in force, or a share
// of them.
func (r *reply) decided() (*limitSet, leak.State) {
	set, s := &r.force.limitSet, r.State
	if len(r.Share) == 0 || len(r.Share) != len(set.law) {
		return set, s
	}
	for i := range set.law {
		others := max(0, set.law[i].Capacity-r.Share[i].Capacity)
		s.Level[i].Level = max(0, s.Level[i].Level-others)
	}
	return &limitSet{law: r.Share, calendar: set.calendar}, s
}

// trip is a step as a store is asked for it, with room for what that points to.
type trip struct {
	op      leak.Op
	reports []leak.Report
	costs   []leak.Units
	back    []leak.Charge
	set     *limitSet // with Replace: what Replacement is of
}

var trips = sync.Pool{New: func() any { return new(trip) }}

// done lets the trip be used again.
func (t *trip) done() {
	clear(t.reports[:cap(t.reports)])
	*t = trip{reports: t.reports[:0], costs: t.costs[:0], back: t.back[:0]}
	trips.Put(t)
}

// resolve writes down what the step takes of the limits in force, up to the first cost
// that can never go, and returns why that one cannot.
func (t *trip) resolve(s *step, f *inForce) (bad *CostError) {
	t.reports, t.costs, t.back = t.reports[:0], t.costs[:0], t.back[:0]
	for i := range s.reports {
		r := &s.reports[i]
		if r.Charge != nil {
			f.align(r.Charge, &r.cost)
		}
		t.reports = append(t.reports, r.Report)
		switch told := &t.reports[i]; r.Kind {
		case leak.Settled:
			told.Used = f.units(&r.used)
		case leak.Left:
			for j := range f.law {
				told.Used[j] = r.used[f.law[j].Unit]
			}
		}
	}
	for i := range s.costs {
		if s.action == leak.Book {
			if bad = f.check(&s.costs[i]); bad != nil {
				break
			}
		}
		t.costs = append(t.costs, f.units(&s.costs[i]))
	}
	for _, c := range s.back {
		f.align(c, &Cost{})
		t.back = append(t.back, *c)
	}
	// A place to move stays what it is: under other limits its new place could be a later
	// one, and so the store moves none.
	t.op = leak.Op{
		Limits: f.law, Stamp: f.stamp, Reports: t.reports, Action: s.action, Costs: t.costs,
		Wait: s.wait, Horizon: s.horizon, After: s.after, Claim: s.claim, Returns: s.returns, Back: t.back, Move: s.move, Into: s.into,
	}
	return bad
}

// settled marks the charges of the reports as settled. The reply does not tell
// how much has come back. To take it that all has makes a hold only more careful.
func (t *trip) settled() {
	for i := range t.reports {
		r := &t.reports[i]
		if r.Kind != leak.Settled || r.Charge.Settled {
			continue
		}
		for j := range t.op.Limits {
			if c := r.Charge; c.N[j] != r.Used[j] {
				c.N[j], c.Settled = r.Used[j], true
			}
		}
	}
}
