package outbound

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Store keeps the state of buckets, each under its key, so that several
// buckets, in one process or in many, are one. [NewMemory] is the store of one
// process.
//
// Update changes the state of one key atomically, by the store's own clock, in
// one round trip: what [Op.Apply] computes from the state and the time is what
// the store must do, in whatever language it does it. A store that computes in
// Go calls Apply itself, between reading and writing. An error says that it
// could not, or that nobody knows whether it has; then it must not try again
// by itself in a way that could charge twice. Of what op points to it may keep
// the limits, which nobody changes, and nothing else.
//
// The package outboundtest has the exam that every store passes.
type Store interface {
	Update(ctx context.Context, key string, op *Op) (Result, error)
}

// Action is what an [Op] does, after its reports.
type Action uint8

// The actions.
const (
	Peek    Action = iota // look, and leave everything as it is
	Book                  // book the next places for Costs
	Meter                 // fill by Costs[0] whatever the level, up to the brim
	Unbook                // give Charges back, the newest first
	Resume                // end a hold, a slow-down and all bookings
	Replace               // replace the limits, for all who share the key
)

var actions = [...]string{"peek", "book", "meter", "unbook", "resume", "replace"}

// String returns the action's name, as errors print it.
func (a Action) String() string { return actions[a] }

// Op is one step of a bucket: reports first, in their order, then the action.
// Limits, costs and durations in it are valid.
type Op struct {
	// Limits are those that the bucket was made with. Levels are matched with
	// them by Unit and Name. Limits set by Replace win over them.
	Limits []Limit
	// Reports are what earlier calls have to say.
	Reports []Report
	// Action is what to do then.
	Action Action
	// Costs is what to book, one place for each, in this order.
	Costs []Cost
	// Wait is the longest real time until the first place; 0: only a place that is due now.
	Wait time.Duration
	// Horizon is the same for the places after the first.
	Horizon time.Duration
	// Charges are the bookings to give back, in the order in which they were booked.
	Charges []*Charge
	// Replacement are the limits to set; none: those that each bucket was made with count again.
	Replacement []Limit

	into []Charge // room for Result.Charges
	free bool     // a cost that no limit counts is fine: an AtOnce does
}

// Report is what a call says about itself once it has gone.
type Report struct {
	Kind   ReportKind
	Charge *Charge       // of the call; nil where nobody's call is meant
	Used   Cost          // Settled: what it really cost
	Wait   time.Duration // Refused, Held: what the API asked for; 0: it did not say
	Epoch  int64         // Refused, Succeeded: the newest epoch that the call knew of when it left
}

// ReportKind is the kind of a [Report].
type ReportKind uint8

// The kinds of reports.
const (
	Settled   ReportKind = iota // the call has really cost Used
	Refused                     // the API has refused the call and asked to wait
	Held                        // the API, or an operator, asks to wait before the next call
	Succeeded                   // the call has succeeded
)

// Charge is what a booking has taken, kept to give back from it.
type Charge struct {
	leak.Charge
	Cost    Cost
	Version int64   // of the limits it was booked under
	limits  []Limit // those limits, as the indices of leak.Charge count them
}

// Result is the store's reply.
type Result struct {
	// Charges are the bookings made, in order: as many of Costs as went.
	Charges []Charge
	// Limit is the index in Limits of the one that has no room for the next
	// of Costs, or -1; and TooLarge is set if it never will have.
	Limit    int
	TooLarge bool
	// Invalid is set if no limit counts the next of Costs.
	Invalid bool
	// Refused is set if the next of Costs was refused, and Wait is the real
	// time until it could go.
	Refused bool
	Wait    time.Duration
	// Full tells which limits a Meter has brought to the brim.
	Full [maxLimits]bool
	// State is the bucket's clock and its levels after the action.
	State leak.State
	// Limits are those in force, in the order of the levels; Version counts
	// how often Replace has replaced them.
	Limits  []Limit
	Version int64
	// Expire is after how long the store may forget the key, if nothing comes
	// between. Limits that were set by Replace are kept for 30 days beyond.
	Expire time.Duration

	noSlot bool // refused because too many calls are in progress
}

// Stored is what a store keeps of one key. The zero value is a key that does
// not exist. Its exported fields survive encoding/json.
type Stored struct {
	State leak.State
	// Limits are those that the levels are of.
	Limits []Limit
	// Set is true if they were set by Replace, and win over every bucket's own.
	Set     bool
	Version int64
}

// Apply computes the step: it changes s from what it was to what it is at the
// store's time now, in nanoseconds from any fixed moment on. It is a pure
// function, with no clock and no lock.
func (op *Op) Apply(s *Stored, now time.Duration) Result {
	if s.State.Speed == 0 {
		*s = Stored{State: leak.New(now), Version: s.Version}
	}
	shapes := s.merge(op.Limits)
	var buf [maxLimits]leak.Limit
	limits := shape(&buf, shapes)
	was := s.State
	s.State.Advance(limits, now)
	for i := range op.Reports {
		op.report(&op.Reports[i], s, limits, shapes)
	}
	r := Result{Limit: -1}
	switch op.Action {
	case Book:
		op.book(s, limits, shapes, &r)
	case Meter:
		n := op.units(s, &op.Costs[0], shapes)
		r.Full = s.State.Meter(limits, &n)
	case Unbook:
		for i := len(op.Charges) - 1; i >= 0; i-- {
			c := op.Charges[i]
			c.align(s, shapes)
			if !s.State.Unbook(limits, &c.Charge) {
				s.State.Settle(limits, &c.Charge, &leak.Units{})
			}
		}
	case Resume:
		s.State.Resume(limits)
	case Replace:
		shapes = op.replace(s, limits)
		limits = shape(&buf, shapes)
	}
	r.State, r.Limits, r.Version = s.State, shapes, s.Version
	r.Expire = s.State.Expire(limits)
	if len(op.Reports) == 0 && (op.Action == Peek || op.Action == Book && len(r.Charges) == 0) {
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
		if s.Set || len(shapes) == len(op.Limits) || find(op.Limits, &shapes[i]) >= 0 {
			n[i] = share(c, &shapes[i])
		}
	}
	return n
}

// share is what a cost takes of one limit.
func share(c *Cost, l *Limit) float64 {
	n := c[l.Unit]
	if n > 0 {
		n = max(n, l.Capacity*1e-9)
	}
	return n
}

func (op *Op) book(s *Stored, limits []leak.Limit, shapes []Limit, r *Result) {
	r.Charges = op.into
	most := op.Wait
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
		c := Charge{Cost: op.Costs[i], Version: s.Version, limits: shapes}
		wait, which, ok := s.State.Fill(limits, &n, most, &c.Charge)
		if !ok {
			r.Refused, r.Wait, r.Limit = true, wait, which
			return
		}
		r.Charges = append(r.Charges, c)
		most = op.Horizon
	}
}

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
