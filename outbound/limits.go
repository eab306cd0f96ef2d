package outbound

import (
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// checkLimits validates the limits of a bucket, which may be shared, and copies them.
func checkLimits(key string, limits []Limit, shared bool) ([]Limit, error) {
	if len(limits) == 0 || len(limits) > maxLimits {
		return nil, &LimitError{Key: key, Reason: fmt.Sprintf("a bucket has 1 to %d limits, not %d", maxLimits, len(limits))}
	}
	own, inFlight := slices.Clone(limits), 0
	for i := range own {
		if flaw := own[i].check(); flaw != "" {
			return nil, &LimitError{Key: key, Limit: own[i], Reason: flaw}
		}
		if own[i].inFlight {
			if inFlight++; shared && own[i].n != 0 {
				return nil, &LimitError{Key: key, Limit: own[i], Reason: adaptiveHere}
			}
		}
	}
	if inFlight > 1 {
		return nil, &LimitError{Key: key, Reason: "a bucket has at most one InFlight"}
	}
	for i := range own {
		l := &own[i]
		if k := slices.IndexFunc(own[:i], l.same); k >= 0 {
			return nil, &LimitError{Key: key, Limit: *l, Reason: "two limits of one unit, " + quote(own[k].label()) + " and " + quote(l.label()) + ", need different names: name them, or leave one out"}
		}
	}
	return own, nil
}

// same reports whether both limits are one to a key and to a reader of its metrics.
func (l *Limit) same(m Limit) bool {
	alike := l.Name == "" && m.Name == "" && l.kind == m.kind && l.shape() == m.shape()
	return l.Unit == m.Unit && l.inFlight == m.inFlight && (alike || l.label() == m.label())
}

// limitSet is a bucket's limits, except for an InFlight, as stores know them. It never changes.
type limitSet struct {
	law      []store.Limit
	labels   []string           // of those without a name, once made
	calendar *calendar.Calendar // nil without a calendar quota
	parts    bool               // a limit needs State.Parts to say when it has capacity
	open     bool               // no call fills it: it is of a bucket whose only limit is an InFlight
}

// newLimitSet leaves an InFlight out, which package store does not count.
func newLimitSet(limits []Limit) (s limitSet) {
	for i := range limits {
		if l := &limits[i]; !l.inFlight {
			s.law, s.labels = append(s.law, l.law()), append(s.labels, l.label())
		}
	}
	s.calendar, s.parts = calendar.New(s.law), slices.ContainsFunc(s.law, func(l store.Limit) bool { return l.Parted() })
	s.open = isOpen(s.law)
	return s
}

// noLimit is the limit of a key that counts only holds. No call fills it.
var noLimit = Limit{Capacity: maxCapacity, LeakRate: maxLeakRate, Name: "\x00none"}

func isOpen(law []store.Limit) bool { return len(law) == 1 && law[0].Name == noLimit.Name }

// keyed returns limits for a key: with noLimit if there is none but an InFlight.
func keyed(limits []Limit) []Limit {
	if len(limits) == 1 && limits[0].inFlight {
		return []Limit{noLimit, limits[0]}
	}
	return limits
}

// label returns the label of the limit i, as [State.Label] has it.
func (s *limitSet) label(i int) string {
	if s.labels == nil {
		l := limitOf(&s.law[i])
		return l.label()
	}
	return s.labels[i]
}

// counts returns the limits that calls fill.
func (s *limitSet) counts() []store.Limit {
	if s.open {
		return nil
	}
	return s.law
}

// list returns the limits as callers know them.
func (s *limitSet) list() []Limit {
	law := s.counts()
	all := make([]Limit, len(law), maxLimits)
	for i := range all {
		all[i] = limitOf(&law[i])
	}
	return all
}

// units returns what a cost takes of each limit.
func (s *limitSet) units(c *Cost) store.Units { return unitsOf(s.counts(), c) }

func unitsOf(law []store.Limit, c *Cost) (n store.Units) {
	for i := range law {
		n[i] = law[i].Takes(max(0, c[law[i].Unit]))
	}
	return n
}

// check returns why a call of this cost can never be admitted by these limits of a key, or nil.
func (s *limitSet) check(key string, c *Cost) error { return s.checkBeside(key, c, 0) }

// checkBeside is check for a call that keeps a fraction of each limit free.
func (s *limitSet) checkBeside(key string, c *Cost, headroom float64) error {
	if !c.valid() {
		return badCost(key, nil, c, ErrInvalid)
	}
	var first, small *store.Limit // the one of the lowest unit, and one that the cost does not fit into
	law := s.counts()
	for i := range law {
		l := &law[i]
		if first == nil || l.Unit < first.Unit {
			first = l
		}
		if n := l.Takes(c[l.Unit]); small == nil && (n > l.Capacity || n > 0 && headroom > 0 && n+l.Headroom(headroom) > l.Capacity) {
			small = l
		}
	}
	switch {
	case first != nil && c[first.Unit] == 0:
		return badCost(key, first, c, ErrInvalid)
	case small != nil:
		bad := badCost(key, small, c, ErrTooLarge)
		bad.Headroom = small.Headroom(headroom)
		return bad
	}
	return nil
}

//go:noinline
func badCost(key string, l *store.Limit, c *Cost, err error) *CostError { // apart, so that bad costs need no stack of good ones
	e := &CostError{Key: key, Cost: *c, Err: err}
	if l != nil {
		e.Limit = limitOf(l)
	}
	return e
}

// lacks reports whether a cost is above the capacity of a limit, with a fraction that stays free.
func (s *limitSet) lacks(c *Cost, headroom float64) bool {
	n := s.units(c)
	n = (&store.Op{Headroom: headroom}).Needs(s.law, &n)
	for i := range s.law {
		if n[i] > s.law[i].Capacity {
			return true
		}
	}
	return false
}

// inFlightOf returns the InFlight among limits, or nil.
func inFlightOf(limits []Limit) *Limit {
	if i := slices.IndexFunc(limits, func(l Limit) bool { return l.inFlight }); i >= 0 {
		return &limits[i]
	}
	return nil
}

// with returns the limits with an InFlight behind them, if there is one.
func with(limits []Limit, inFlight *Limit) []Limit {
	if inFlight == nil {
		return limits
	}
	return append(limits, *inFlight)
}

// inForce is what a bucket knows of the limits that count. It never changes.
type inForce struct {
	limitSet
	number int64         // of the latest reply, or 0
	born   time.Duration // the life of the key in which they have this number
}

// align returns a charge that was booked by other limits as one by these. Limits that are the same
// keep what the charge says of them. Another one counts the call as its cost says. A limit that has
// come since returns nothing, because the charge's Number is too low.
func (s *limitSet) align(c *store.Charge, by []store.Limit, cost *Cost) *store.Charge {
	if by == nil || store.Same(by, s.law) {
		return c
	}
	d := *c
	d.N, d.Y, d.Up = s.units(cost), store.Units{}, store.Units{}
	for i := range s.law {
		for j := range by {
			if store.Same(s.law[i:i+1], by[j:j+1]) {
				d.N[i], d.Y[i], d.Up[i] = c.N[j], c.Y[j], c.Up[j]
			}
		}
	}
	return &d
}

// learn returns what is in force after a reply to a step that counted by f. mine are the limits
// that the bucket was made with.
func (f *inForce) learn(r *store.Reply, mine *limitSet, shared bool) (*inForce, error) {
	if r.Number == 0 || len(r.Limits) == 0 && (!shared || r.Number != f.number || f.born == r.State.Born) {
		return f, nil
	}
	next := &inForce{number: r.Number, born: r.State.Born}
	switch {
	case len(r.Limits) == 0 || store.Equal(r.Limits, f.law):
		next.limitSet = f.limitSet
	case store.Equal(r.Limits, mine.law):
		next.limitSet = *mine
	default:
		limits := make([]Limit, len(r.Limits))
		for i := range r.Limits {
			if limits[i] = limitOf(&r.Limits[i]); !r.Limits[i].Sound() {
				limits[i].flaw = "its numbers do not fit together"
			}
		}
		named, err := checkLimits("", limits, shared)
		if err != nil {
			return f, fmt.Errorf("limits in force: %w", err)
		}
		next.limitSet = newLimitSet(named)
	}
	return next, nil
}
