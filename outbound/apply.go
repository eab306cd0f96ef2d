package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Apply computes the step: it changes s from what it was to what it is at the
// store's time now, in nanoseconds from any fixed moment on. It is a pure
// function, with no clock and no lock.
func (op *Op) Apply(s *Stored, now time.Duration) Result {
	if s.State.Speed == 0 {
		*s = Stored{State: leak.New(now), Version: s.Version}
	}
	op.again()
	shapes := s.merge(op.Limits)
	var buf [maxLimits]leak.Limit
	limits := shape(&buf, shapes)
	was := s.State
	s.State.Advance(limits, now)
	// Before the reports: what they give back is then not promised to it.
	lifted := op.Move != nil && op.Move.Version == s.Version && !op.adds(s, shapes) && s.State.Unbook(limits, &op.Move.Charge)
	for i := range op.Reports {
		op.report(&op.Reports[i], s, limits, shapes)
	}
	r := Result{Limit: -1}
	switch op.Action {
	case Book:
		op.book(s, limits, shapes, lifted, &r)
	case Meter:
		n := op.units(s, &op.Costs[0], shapes)
		r.Full = s.State.Meter(limits, &n)
	case Resume:
		s.State.Resume(limits)
		s.Lead = 0
	case Replace:
		shapes = op.replace(s, limits)
		limits = shape(&buf, shapes)
	}
	r.State, r.Limits, r.Version = s.State, shapes, s.Version
	for i := range shapes {
		if !op.fills(s, shapes, i) {
			r.others |= 1 << i
		}
	}
	r.Expire = s.State.Expire(limits)
	if now >= was.At && !lifted && len(op.Reports)+len(op.Charges)+len(r.Charges) == 0 && op.Action <= Book {
		// Nothing has changed. Every look at a slowed clock that is kept loses
		// part of a nanosecond, and who looks often enough would stop it.
		s.State = was
	}
	return r
}

// shape takes from limits what the arithmetic needs.
func shape(buf *[maxLimits]leak.Limit, limits []Limit) []leak.Limit {
	for i := range limits {
		buf[i] = leak.Limit{Capacity: limits[i].Capacity, Rate: limits[i].LeakRate}
	}
	return buf[:len(limits)]
}

// merge returns the limits in force, in the order of the levels. Buckets that
// share a key may have been made with different limits, as they are while a
// new release rolls out: then each is held to its own, and fills those of the
// others that it has in common with them.
func (s *Stored) merge(own []Limit) []Limit {
	if s.Set {
		return s.Limits
	}
	if s.Limits == nil {
		s.Limits = own
		return own
	}
	if len(own) == len(s.Limits) && (len(own) == 0 || &own[0] == &s.Limits[0]) {
		return own
	}
	known := append(make([]Limit, 0, maxLimits), s.Limits...)
	same := len(own) == len(known)
	for i := range own {
		j := find(known, &own[i])
		switch {
		case j >= 0:
			same = same && i == j && known[j] == own[i]
			known[j] = own[i]
		case len(known) < maxLimits:
			same = false
			known = append(known, own[i])
		default: // no room to remember it beside the others'
			same = false
			j = s.spare(known, own)
			known[j], s.State.Level[j] = own[i], leak.Level{}
			s.Version++
		}
	}
	if same {
		return s.Limits
	}
	s.Limits = known
	return known
}

// spare returns the index of a known limit that is not among own.
func (s *Stored) spare(known, own []Limit) int {
	best := 0
	for j := range known {
		if find(own, &known[j]) < 0 && (find(own, &known[best]) >= 0 || s.State.Level[j].Level < s.State.Level[best].Level) {
			best = j
		}
	}
	return best
}

// find returns the index of the limit that is the same as l, or -1.
func find(limits []Limit, l *Limit) int {
	for i := range limits {
		if limits[i].same(l) {
			return i
		}
	}
	return -1
}

// units returns what a cost takes of each limit: nothing of those that the
// bucket was not made with.
func (op *Op) units(s *Stored, c *Cost, shapes []Limit) (n leak.Units) {
	for i := range shapes {
		if op.fills(s, shapes, i) {
			n[i] = share(c, &shapes[i])
		}
	}
	return n
}

// fills reports whether a limit is one of the bucket's that asks.
func (op *Op) fills(s *Stored, shapes []Limit, i int) bool {
	return s.Set || len(shapes) == len(op.Limits) || find(op.Limits, &shapes[i]) >= 0
}

// adds reports whether a settle rides along that adds units. Then a place that is
// booked anew could be a later one.
func (op *Op) adds(s *Stored, shapes []Limit) bool {
	for i := range op.Reports {
		r := &op.Reports[i]
		if r.Kind != Settled {
			continue
		}
		r.Charge.align(s, shapes)
		used := op.units(s, &r.Used, shapes)
		for j := range shapes {
			if used[j] > r.Charge.N[j] {
				return true
			}
		}
	}
	return false
}

// again makes the charges what they were before Apply was called the first
// time, or notes that.
func (op *Op) again() {
	if len(op.Reports)+len(op.Charges) == 0 && op.Move == nil {
		return
	}
	first := op.were == nil
	i := 0
	each := func(c *Charge) {
		switch {
		case c == nil:
		case first:
			op.were = append(op.were, *c)
		default:
			*c = op.were[i]
			i++
		}
	}
	for j := range op.Reports {
		each(op.Reports[j].Charge)
	}
	for _, c := range op.Charges {
		each(c)
	}
	each(op.Move)
	if first && op.were == nil {
		op.were = []Charge{}
	}
}

// share is what a cost takes of one limit.
func share(c *Cost, l *Limit) float64 {
	n := c[l.Unit]
	if n > 0 {
		n = max(n, l.Capacity*1e-9)
	}
	return n
}

func (op *Op) book(s *Stored, limits []leak.Limit, shapes []Limit, lifted bool, r *Result) {
	for i := len(op.Charges) - 1; i >= 0; i-- {
		c := op.Charges[i]
		c.align(s, shapes)
		if !s.State.Unbook(limits, &c.Charge) {
			s.State.Settle(limits, &c.Charge, &leak.Units{})
		}
	}
	r.Charges = op.into
	most := op.Wait
	if lifted {
		most = maxWait // it had a place, and this one is no later
	} else if op.Move != nil {
		return
	}
	claim, begins := op.Claim, op.Claim > s.Lead
	if begins {
		claim = 0
	}
	var farthest time.Duration // for who catches up
	for i := range op.Costs {
		n := op.units(s, &op.Costs[i], shapes)
		r.Invalid = n == (leak.Units{}) && !op.free
		for j := range limits {
			if n[j] > limits[j].Capacity {
				r.Limit, r.TooLarge = j, true
			}
		}
		if r.Invalid || r.TooLarge {
			r.Refused = true
			return
		}
		c := Charge{Version: s.Version, limits: shapes}
		wait, which, ok := s.State.Fill(limits, &n, most, &c.Charge)
		if !ok {
			r.Refused, r.Wait, r.Limit = true, wait, which
			return
		}
		r.Charges = append(r.Charges, c)
		if i == 0 {
			farthest = later(wait, catchUp)
		}
		most = op.Horizon
		if op.Claim > 0 {
			claim += n[0]
			s.Lead = max(s.Lead, claim)
			r.Claim = claim
			if begins {
				r.Claim = s.Lead
			} else if claim < s.Lead && n[0] > 0 {
				most = max(most, farthest)
			}
		}
	}
}

// catchUp is how much further away than its first place who is behind the lead
// may book. It bounds what others wait for, and what a crash takes with it.
const catchUp = 100 * time.Millisecond

func (op *Op) replace(s *Stored, old []leak.Limit) []Limit {
	set := op.Replacement
	s.Set = len(set) > 0
	if !s.Set && !op.free {
		set = op.Limits
	}
	from := make([]int, len(set))
	for i := range set {
		from[i] = find(s.Limits, &set[i])
	}
	var buf [maxLimits]leak.Limit
	s.State.Change(old, shape(&buf, set), from)
	s.Limits = set
	s.Version++
	return set
}

func (op *Op) report(r *Report, s *Stored, limits []leak.Limit, shapes []Limit) {
	var c *leak.Charge
	if r.Charge != nil {
		r.Charge.align(s, shapes)
		c = &r.Charge.Charge
	}
	switch r.Kind {
	case Settled:
		used := op.units(s, &r.Used, shapes)
		s.State.Settle(limits, c, &used)
	case Refused:
		s.State.Refused(limits, r.Epoch, r.Wait, c)
	case Held:
		s.State.Hold(limits, r.Wait, c)
	case Succeeded:
		s.State.Succeeded(r.Epoch)
	}
}

// align brings a charge that was booked under other limits to today's: what
// one of them does not know of it cannot come back from it.
func (c *Charge) align(s *Stored, shapes []Limit) {
	if c.Version == s.Version {
		return
	}
	from := make([]int, len(shapes))
	for i := range shapes {
		from[i] = -1
		// After more than one change a limit may have gone and come again,
		// empty.
		if c.Version+1 == s.Version {
			from[i] = find(c.limits, &shapes[i])
		}
	}
	var was, is [maxLimits]leak.Limit
	c.Follow(shape(&was, c.limits), shape(&is, shapes), from)
	c.Version, c.limits = s.Version, shapes
}
