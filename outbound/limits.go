package outbound

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// checkLimits validates a bucket's limits and copies them.
func checkLimits(key string, limits []Limit) ([]Limit, error) {
	if len(limits) == 0 || len(limits) > maxLimits {
		return nil, &LimitError{Key: key, Reason: fmt.Sprintf("a bucket has 1 to %d limits, not %d", maxLimits, len(limits))}
	}
	own, inFlight := slices.Clone(limits), 0
	for i := range own {
		if flaw := own[i].check(); flaw != "" {
			return nil, &LimitError{Key: key, Limit: own[i], Reason: flaw}
		}
		if own[i].inFlight {
			inFlight++
		}
	}
	if inFlight > 1 {
		return nil, &LimitError{Key: key, Reason: "a bucket has at most one InFlight"}
	}
	for i := range limits {
		l := &own[i]
		if l.Name == "" && (find(limits[:i], &limits[i]) >= 0 || find(limits[i+1:], &limits[i]) >= 0) {
			l.Name = l.says()
			l.called = l.Name
		}
		if find(own[:i], l) >= 0 {
			return nil, &LimitError{Key: key, Limit: *l, Reason: "two limits of one unit are " + quote(l.Name) + ": leave one out, or give them different names"}
		}
	}
	return own, nil
}

// inherit gives limits without a name the name that they have among those in force. So they
// stay the same limits when another of their unit comes or goes, or when their numbers change:
// one that does not say the same is the one that differs in its numbers alone.
func inherit(limits, inForce []Limit) {
	was, is := unnamed(inForce), unnamed(limits)
	for _, alike := range [...]func(l, m *Limit) bool{
		func(l, m *Limit) bool { return l.says() == m.says() },
		func(l, m *Limit) bool { return l.kind == m.kind && l.shape() == m.shape() },
		func(l, m *Limit) bool { return l.shape() == m.shape() },
	} {
		for _, l := range slices.Clone(is) {
			like := func(m *Limit) bool { return m.Unit == l.Unit && alike(l, m) }
			i, j := only(is, like), only(was, like)
			if i < 0 || j < 0 {
				continue
			}
			if at := find(limits, was[j]); at < 0 {
				l.Name, l.called = was[j].Name, was[j].Name
			} else if &limits[at] != l {
				continue
			}
			is, was = slices.Delete(is, i, i+1), slices.Delete(was, j, j+1)
		}
	}
}

// unnamed returns those of limits that were given no name.
func unnamed(limits []Limit) (all []*Limit) {
	for i := range limits {
		if limits[i].unnamed() {
			all = append(all, &limits[i])
		}
	}
	return all
}

// only returns the index of the only limit that is like that, or -1.
func only(limits []*Limit, like func(*Limit) bool) int {
	i := slices.IndexFunc(limits, like)
	if i >= 0 && slices.ContainsFunc(limits[i+1:], like) {
		return -1
	}
	return i
}

// findAtOnce returns the index of the InFlight, or -1.
func findAtOnce(limits []Limit) int {
	return slices.IndexFunc(limits, func(l Limit) bool { return l.inFlight })
}

// limitSet is a bucket's limits, but for an InFlight, as stores know them. It never changes.
type limitSet struct {
	law      []leak.Limit
	labels   []string  // of those without a name; nil: none is made yet
	calendar *calendar // nil: none of them counts by the calendar
}

// newLimitSet leaves an InFlight out, which is no limit of the law.
func newLimitSet(limits []Limit) (s limitSet) {
	size := len(limits)
	if findAtOnce(limits) >= 0 {
		size--
	}
	s.law = make([]leak.Limit, 0, size)
	for i := range limits {
		if limits[i].inFlight {
			continue
		}
		if s.law = append(s.law, limits[i].law()); limits[i].Name == "" {
			if s.labels == nil {
				s.labels = make([]string, size)
			}
			s.labels[len(s.law)-1] = limits[i].label()
		}
	}
	s.calendar = newCalendar(s.law)
	return s
}

// label returns the label of the limit i, as [State.Label] has it.
func (s *limitSet) label(i int) string {
	if l := limitOf(&s.law[i]); l.Name != "" || s.labels == nil {
		return l.label()
	}
	return s.labels[i]
}

// list returns the limits as callers know them.
func (s *limitSet) list() []Limit {
	all := make([]Limit, len(s.law), maxLimits)
	for i := range all {
		all[i] = limitOf(&s.law[i])
	}
	return all
}

// same reports whether both have the same limits in the same order.
func (s *limitSet) same(o *limitSet) bool {
	return s == o || slices.EqualFunc(s.law, o.law, func(l, m leak.Limit) bool {
		l.Window, m.Window, l.N, m.N, l.Unnamed, m.Unnamed = 0, 0, 0, 0, false, false
		return l == m
	})
}

// units returns what a cost takes of each limit.
func (s *limitSet) units(c *Cost) (n leak.Units) {
	for i := range s.law {
		n[i] = s.law[i].Takes(max(0, c[s.law[i].Unit]))
	}
	return n
}

// check returns why a call of this cost can never go under these limits; nil: it can. The error has
// no key.
func (s *limitSet) check(c *Cost) *CostError {
	l, err := s.bad(c)
	if err == nil {
		return nil
	}
	return badCost(l, c, err)
}

//go:noinline
func badCost(l *leak.Limit, c *Cost, err error) *CostError { // apart, so that bad costs need no stack of good ones
	e := &CostError{Cost: *c, Err: err}
	if l != nil {
		e.Limit = limitOf(l)
	}
	return e
}

// bad is check without the error's details.
func (s *limitSet) bad(c *Cost) (*leak.Limit, error) {
	if !c.valid() {
		return nil, ErrInvalidCost
	}
	var first, small *leak.Limit // the one of the lowest unit, and one that the cost does not fit into
	for i := range s.law {
		l := &s.law[i]
		if first == nil || l.Unit < first.Unit {
			first = l
		}
		if small == nil && l.Takes(c[l.Unit]) > l.Capacity {
			small = l
		}
	}
	switch {
	case first != nil && c[first.Unit] == 0:
		return first, ErrInvalidCost
	case small != nil:
		return small, ErrTooLarge
	}
	return nil, nil
}

// lacks reports whether a cost is more than a limit ever has room for.
func (s *limitSet) lacks(c *Cost) bool {
	return slices.ContainsFunc(s.law, func(l leak.Limit) bool { return l.Takes(c[l.Unit]) > l.Capacity })
}

// inFlight is a bucket's limit on calls at once, and the place that it has among the limits.
type inFlight struct {
	Limit
	at   int
	text string // its label
}

// newInFlight returns the InFlight among limits, or nil.
func newInFlight(limits []Limit) *inFlight {
	if i := findAtOnce(limits); i >= 0 {
		return &inFlight{limits[i], i, limits[i].label()}
	}
	return nil
}

// same reports whether both are the same limit at the same place, or there is none.
func (a *inFlight) same(b *inFlight) bool { return a == b || a != nil && b != nil && *a == *b }

// among returns the limits with the InFlight at its place.
func (a *inFlight) among(leaky []Limit) []Limit {
	if a == nil {
		return leaky
	}
	return slices.Insert(leaky, min(a.at, len(leaky)), a.Limit)
}

// inForce is what a bucket knows of the limits that count. It never changes.
type inForce struct {
	limitSet
	stamp   int64 // as leak.Op says
	version int64
	before  *limitSet // those of the version before, if they were others; nil: it is not known
}

// align converts a charge that was booked under other limits to these. A limit that is newer
// than the charge gives nothing back for it, and counts it as the cost says. A charge from
// just before the limits were replaced follows those that have stayed; an older one gets
// nothing back.
func (f *inForce) align(c *leak.Charge, cost *Cost) {
	if c.Version == f.version {
		return
	}
	var from [maxLimits]int
	var was []leak.Limit
	known := c.Version+1 == f.version && f.before != nil
	if known {
		was = f.before.law
	}
	for i := range f.law {
		from[i] = -1
		if known { // after more than one change a limit may have gone and come again
			from[i] = leak.Find(was, &f.law[i])
		}
	}
	c.Follow(was, f.law, from[:len(f.law)])
	for i := range f.law {
		if from[i] < 0 {
			c.N[i] = f.law[i].Takes(max(0, cost[f.law[i].Unit]))
		}
	}
	c.Version = f.version
}

// limitsInForce is the newest inForce that a bucket has heard of.
type limitsInForce struct{ atomic.Pointer[inForce] }

// learn notes what the reply to a step tells of the limits in force, where it counts by
// f, and returns those. set are the limits that the reply brings; nil: it brings none.
func (p *limitsInForce) learn(f *inForce, r *leak.Reply, set *limitSet) *inForce {
	if r.Version == f.version && r.Stamp == f.stamp {
		return f
	}
	if set == nil {
		set = &f.limitSet
	}
	next := f.next(set, r.Stamp, r.Version)
	p.CompareAndSwap(f, next) // unless another operation has heard of others since
	return next
}

// learnStale notes the limits of which a store says that they are in force, and not f. If
// none were set, own are.
func (p *limitsInForce) learnStale(f *inForce, r *leak.Reply, own *limitSet) error {
	if len(r.Limits) > 0 {
		limits := make([]Limit, len(r.Limits))
		for i := range r.Limits {
			limits[i] = limitOf(&r.Limits[i])
		}
		named, err := checkLimits("", limits)
		if err == nil && r.Stamp == 0 {
			err = &LimitError{Reason: "they have no stamp"}
		}
		if err != nil {
			return fmt.Errorf("limits that were set: %w", err)
		}
		set := newLimitSet(named)
		own = &set
	}
	p.learn(f, r, own)
	return nil
}

// next returns the limits after these. It keeps those of just before, for the charges that
// were booked under them, and not what was before that.
func (f *inForce) next(set *limitSet, stamp, version int64) *inForce {
	next := &inForce{limitSet: *set, stamp: stamp, version: version}
	if version == f.version+1 {
		before := f.limitSet
		next.before = &before
	}
	return next
}
