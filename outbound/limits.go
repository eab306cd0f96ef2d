package outbound

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// checkLimits validates a bucket's limits and copies them.
func checkLimits(key string, limits []Limit) ([]Limit, error) {
	if len(limits) == 0 || len(limits) > maxLimits {
		return nil, &LimitError{Key: key, Reason: fmt.Sprintf("a bucket has 1 to %d limits, not %d", maxLimits, len(limits))}
	}
	own, atOnce := slices.Clone(limits), 0
	for i := range own {
		if flaw := own[i].check(); flaw != "" {
			return nil, &LimitError{Key: key, Limit: own[i], Reason: flaw}
		}
		if own[i].atOnce {
			atOnce++
		}
	}
	if atOnce > 1 {
		return nil, &LimitError{Key: key, Reason: "a bucket has at most one AtOnce"}
	}
	for i := range limits {
		l := &own[i]
		if l.Name == "" && (find(limits[:i], &limits[i]) >= 0 || find(limits[i+1:], &limits[i]) >= 0) {
			l.Name = l.says()
		}
		if find(own[:i], l) >= 0 {
			return nil, &LimitError{Key: key, Limit: *l, Reason: "two limits of one unit are " + quote(l.Name) + ": leave one out, or give them different names"}
		}
	}
	return own, nil
}

// inherit has limits that were given no name keep the name they have among those in
// force: another of their unit that comes or goes makes them no other limits.
func inherit(limits, inForce []Limit) {
	for i := range limits {
		l := &limits[i]
		if !l.unnamed() {
			continue
		}
		says := l.says()
		heir := func(m Limit) bool { return m.Unit == l.Unit && m.unnamed() && m.says() == says }
		if j := find(inForce, l); j >= 0 && heir(inForce[j]) {
			continue
		}
		if j := slices.IndexFunc(inForce, heir); j >= 0 && find(limits, &inForce[j]) < 0 {
			l.Name = inForce[j].Name
		}
	}
}

// noSlots refuses a limit that needs the calls of all workers to be known.
func noSlots(key string, limits []Limit) error {
	for i := range limits {
		if limits[i].atOnce {
			return &LimitError{Key: key, Limit: limits[i], Reason: "AtOnce is each worker's own: NewSharedBucket takes it, and SetLimits leaves it as it is"}
		}
	}
	return nil
}

// limitSet is a bucket's limits, as callers and as stores know them. It never changes.
type limitSet struct {
	all []Limit      // as given
	own []Limit      // without an AtOnce
	law []leak.Limit // as stores know them
}

func newLimitSet(limits []Limit) limitSet {
	s := limitSet{all: limits, own: limits}
	for i := range limits {
		if limits[i].atOnce {
			s.own = slices.Delete(slices.Clone(limits), i, i+1)
			break
		}
	}
	s.law = make([]leak.Limit, len(s.own))
	for i := range s.own {
		s.law[i] = s.own[i].law()
	}
	return s
}

// sameLimits reports whether both have the same limits in the same order.
func sameLimits(a, b []Limit) bool {
	return slices.EqualFunc(a, b, func(l, m Limit) bool {
		return l.same(&m) && l.Capacity == m.Capacity && l.LeakRate == m.LeakRate
	})
}

// slots returns how many calls at once there may be; 0: any number.
func (s *limitSet) slots() int {
	for i := range s.all {
		if s.all[i].atOnce {
			return int(s.all[i].Capacity)
		}
	}
	return 0
}

// units returns what a cost takes of each limit.
func (s *limitSet) units(c *Cost) (n leak.Units) {
	for i := range s.law {
		n[i] = s.law[i].Takes(c[s.law[i].Unit])
	}
	return n
}

// law returns what a store is to know of the limit.
func (l *Limit) law() leak.Limit {
	return leak.Limit{Name: l.Name, Unit: l.Unit, Capacity: l.Capacity, Rate: l.LeakRate, Window: l.window}
}

// limitOf returns the limit of which a store knows that.
func limitOf(l *leak.Limit) Limit {
	m := Limit{Capacity: l.Capacity, LeakRate: l.Rate, Unit: l.Unit, Name: l.Name}
	if l.Window > 0 && l.Window <= maxWait-jitter {
		// As Per and Burst compute the rate, but for the last bits.
		n, _ := strconv.ParseFloat(strconv.FormatFloat(l.Rate*(l.Window+jitter).Seconds()+l.Capacity-1, 'g', 15, 64), 64)
		if n > 0 {
			m.n, m.window = n, l.Window
		}
	}
	return m
}

// inForce is what a bucket knows of the limits that count. It never changes.
type inForce struct {
	limitSet
	stamp   int64 // as [leak.Op] says
	version int64
	before  *limitSet // those of the version before, if they were others; nil: it is not known
}

// align brings a charge that was booked under other limits to these: what one of them
// does not know of it cannot come back from it, and counts as the cost says. A charge
// from just before the limits were replaced follows those that have stayed; of an older
// one nothing comes back.
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
			c.N[i] = f.law[i].Takes(cost[f.law[i].Unit])
		}
	}
	c.Version = f.version
}

// heard notes what the reply to a step tells of the limits in force, where it counts by
// f. set are those that the step has set, if it has.
func (l *ledger) heard(f *inForce, r *leak.Reply, set *limitSet) *inForce {
	if r.Version == f.version && r.Stamp == f.stamp {
		return f
	}
	next := &inForce{limitSet: f.limitSet, stamp: r.Stamp, version: r.Version}
	if set != nil {
		next.limitSet = *set
	}
	next.follow(f)
	l.force.CompareAndSwap(f, next) // or somebody has heard of others since
	return next
}

// stale takes in the limits of which a store says that they are in force.
func (l *ledger) stale(f *inForce, r *leak.Reply) error {
	set := *l.made
	if len(r.Limits) > 0 {
		limits := make([]Limit, len(r.Limits))
		for i := range r.Limits {
			limits[i] = limitOf(&r.Limits[i])
		}
		own, err := checkLimits("", limits)
		if err != nil || r.Stamp == 0 {
			return fmt.Errorf("limits that were set: %w", err)
		}
		set = newLimitSet(own)
	}
	next := &inForce{limitSet: set, stamp: r.Stamp, version: r.Version}
	next.follow(f)
	l.force.CompareAndSwap(f, next)
	return nil
}

// follow keeps the limits of just before, for the charges that were booked under them.
func (f *inForce) follow(was *inForce) {
	if f.version == was.version+1 {
		before := was.limitSet // and not what was before that
		f.before = &before
	}
}
