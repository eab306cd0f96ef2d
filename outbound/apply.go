package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Apply computes the step: it changes s from what it was to what it is at the
// store's time now, in nanoseconds from any fixed moment on. It is a pure
// function, with no clock and no lock.
//
// The times of a key must not go back. One that is behind the time before by a
// second or less is taken for that: what is kept stands until time has caught up,
// so that clocks which differ a little, or a stamp that was taken before another and
// is used after it, count no time twice. A larger step back is a clock that was
// set: the step is lost, and nothing else. A step forward is time that has passed.
//
// What Apply cannot have left in s, such as a level that is no number, is garbage:
// a new life begins, with every limit at its brim, and [Result.Garbage] is set. A
// store that cannot read what it has kept says so with a speed of less than 0, in
// s.State.Speed.
func (op *Op) Apply(s *Stored, now time.Duration) Result {
	r := Result{Limit: -1}
	if s.missing() {
		*s = Stored{State: leak.New(now), Version: s.Version}
	} else if r.Garbage = !s.sound(op.Limits, now); r.Garbage {
		s.renew(now)
	}
	op.again()
	if s.Limits == nil {
		s.Limits = op.Limits
	}
	was := *s
	var shapes []Limit
	shapes, r.Differ = s.use(op.Limits)
	if r.Garbage {
		s.brim(shapes)
	}
	movable := op.Move != nil && op.Move.Version == s.Version
	op.Align(s.Version, shapes)
	var buf [maxLimits]leak.Limit
	limits := shape(&buf, shapes)
	ahead := s.State.Advance(limits, now)
	// Before the reports: what they give back is then not promised to it.
	lifted := movable && !op.adds(shapes) && s.State.Unbook(limits, &op.Move.Charge)
	for i := range op.Reports {
		op.report(&op.Reports[i], s, limits, shapes)
	}
	switch op.Action {
	case Book:
		op.book(s, limits, shapes, lifted, &r)
	case Meter:
		n := units(&op.Costs[0], shapes)
		r.Full = s.State.Meter(limits, &n)
	case Resume:
		s.State.Resume(limits)
		s.Lead = 0
	case Replace:
		if shapes = op.Replacement; len(shapes) == 0 && !op.free {
			shapes = op.Limits
		}
		s.replace(shapes, len(op.Replacement) > 0)
		limits = shape(&buf, shapes)
	}
	r.State, r.Limits, r.Version = s.State, shapes, s.Version
	r.Expire = later(ahead, s.expire(limits))
	if r.Refused && !r.TooLarge && !r.Invalid {
		r.Wait = later(ahead, r.Wait)
	}
	s.State.Keep(ahead)
	if (now >= was.State.At || ahead > 0) && !r.Garbage && s.Version == was.Version && !lifted && len(op.Reports)+len(op.Charges)+len(r.Charges) == 0 && (op.Action <= Book || op.Action == Replace) {
		// Nothing has changed. Every look at a slowed clock that is kept loses
		// part of a nanosecond, and who looks often enough would stop it.
		*s = was
	}
	return r
}

// shape takes from limits what the arithmetic needs.
func shape(buf *[maxLimits]leak.Limit, limits []Limit) []leak.Limit {
	for i := range limits {
		buf[i] = limits[i].shape()
	}
	return buf[:len(limits)]
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

// units returns what a cost takes of each limit.
func units(c *Cost, shapes []Limit) (n leak.Units) {
	for i := range shapes {
		n[i] = share(c, &shapes[i])
	}
	return n
}

// adds reports whether a settle rides along that adds units. Then a place that is
// booked anew could be a later one.
func (op *Op) adds(shapes []Limit) bool {
	for i := range op.Reports {
		r := &op.Reports[i]
		if r.Kind != Settled {
			continue
		}
		used := units(&r.Used, shapes)
		for j := range shapes {
			if used[j] > r.Charge.N[j] {
				return true
			}
		}
	}
	return false
}

// again makes the charges what they were when it was called the first time, or
// notes that.
func (op *Op) again() {
	if len(op.Reports)+len(op.Charges) == 0 && op.Move == nil {
		return
	}
	first := !op.noted
	op.noted = true
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
}

// share is what a cost takes of one limit.
func share(c *Cost, l *Limit) float64 { return l.shape().Takes(c[l.Unit]) }

func (op *Op) book(s *Stored, limits []leak.Limit, shapes []Limit, lifted bool, r *Result) {
	for i := len(op.Charges) - 1; i >= 0; i-- {
		c := op.Charges[i]
		if !s.State.Unbook(limits, &c.Charge) {
			s.State.Settle(limits, &c.Charge, &leak.Units{})
		}
	}
	r.Charges = op.Into
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
		n := units(&op.Costs[i], shapes)
		r.Invalid = n == (leak.Units{}) && op.Costs[i] != (Cost{}) && !op.free
		for j := range limits {
			if n[j] > limits[j].Capacity {
				r.Limit, r.TooLarge = j, true
			}
		}
		if r.Invalid || r.TooLarge {
			r.Refused = true
			return
		}
		var c Charge
		last := s.State.Last
		if i == 0 && op.After > 0 {
			s.State.Last = max(last, passes(s.State, op.After))
		}
		moved := s.State.Last - last
		wait, which, ok := s.State.Fill(limits, &n, most, &c.Charge)
		c.Before -= moved // what was the last booking is still that
		if !ok {
			s.State.Last = last
			r.Refused, r.Wait, r.Limit = true, wait, which
			return
		}
		r.Charges = append(r.Charges, c)
		if i == 0 {
			farthest = later(wait, max(catchUp, wait))
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

// passes returns how far the dial gets in real time x.
func passes(s leak.State, x time.Duration) time.Duration {
	s.At, s.Born, s.Skip = 0, 0, 0
	s.Advance(nil, x)
	return s.Dial()
}

// catchUp is how much further away than its first place who is behind the lead
// may book. It bounds what others wait for, and what a crash takes with it.
const catchUp = 100 * time.Millisecond

func (op *Op) report(r *Report, s *Stored, limits []leak.Limit, shapes []Limit) {
	var c *leak.Charge
	if r.Charge != nil {
		c = &r.Charge.Charge
	}
	before := max(0, s.State.Rem)
	switch r.Kind {
	case Settled:
		used := units(&r.Used, shapes)
		s.State.Settle(limits, c, &used)
	case Refused:
		s.State.Refused(limits, r.Epoch, r.Wait, r.MaxWait, c)
		// Never shorter, and not in a store: there one hold is for all.
		if held := s.State.Rem; r.spread > 0 && s.State.Fails > 0 && held > max(before, r.Wait) {
			most := leak.MaxBack
			if r.MaxWait > 0 {
				most = min(most, r.MaxWait)
			}
			s.State.Hold(limits, min(held+time.Duration(r.spread*float64(held)), most), c)
		}
	case Held:
		s.State.Hold(limits, r.Wait, c)
	case Succeeded:
		s.State.Succeeded(r.Epoch)
	case Left:
		for i := range shapes {
			if left := r.Used[shapes[i].Unit]; left >= 0 && left <= s.State.Since(limits, c, i) {
				s.State.Hold(limits, r.Wait, c)
			}
		}
	}
	if s.State.Rem > before {
		s.State.Why = uint8(r.Reason)
	}
}

// stagger is the largest part by which a doubled hold of a bucket that nobody shares is
// longer, by chance. Workers that were refused together come back one after the other
// then, and not together, to be refused again.
const stagger = 0.25

// Align brings the charges that op points to, those of its reports included,
// to the limits in force, of this version, as [Op.Apply] does itself. It is for
// stores that do not compute with Apply, and know version and limits from an
// earlier reply. A charge from just before the limits were replaced follows
// those that have stayed; of an older one nothing comes back. A store that then
// finds another version in force takes a charge as one of which nothing comes
// back; what a call has really cost beyond its cost is added all the same.
func (op *Op) Align(version int64, limits []Limit) {
	for i := range op.Reports {
		if r := &op.Reports[i]; r.Charge != nil {
			r.Charge.align(version, limits, &r.Cost)
		}
	}
	for _, c := range op.Charges {
		c.align(version, limits, &Cost{})
	}
	if op.Move != nil { // it may stay, and be settled
		var cost Cost
		if len(op.Costs) > 0 {
			cost = op.Costs[0]
		}
		op.Move.align(version, limits, &cost)
	}
}

// align brings a charge that was booked under other limits to these: what one
// of them does not know of it cannot come back from it, and more than the cost
// is added.
func (c *Charge) align(version int64, shapes []Limit, cost *Cost) {
	if c.Version == version {
		return
	}
	var from [maxLimits]int
	for i := range shapes {
		from[i] = -1
		// After more than one change a limit may have gone and come again.
		if c.Version+1 == version {
			from[i] = find(c.limits, &shapes[i])
		}
	}
	var was, is [maxLimits]leak.Limit
	c.Follow(shape(&was, c.limits), shape(&is, shapes), from[:len(shapes)])
	for i := range shapes {
		if from[i] < 0 {
			c.N[i] = share(cost, &shapes[i])
		}
	}
	c.Version, c.limits = version, shapes
}
