package store

import (
	"math"
	"slices"
	"time"
)

const (
	// keepSet is how long limits outlive their levels if Set is true.
	keepSet = 30 * 24 * time.Hour
	// catchUp is how much further away than its first reservation a process that is behind the lead
	// may book, or as many times as far again as that is away as its weight, and catchUpTimes at
	// least. They bound how long other processes wait for it, and what its crash or a late reply
	// loses.
	catchUp      = 100 * time.Millisecond
	catchUpTimes = 4
	// A weight is taken for one between these, which sums can hold.
	leastWeight, mostWeight = 1e-9, 1e9
	// mostKept is the largest number of a booking, and of limits, that a corrupt key keeps.
	mostKept = math.MaxInt64 / 4
)

// Stored is all that a store keeps of one key. The zero value is a key that does not exist. A copy
// by assignment shares the parts, which Apply changes.
type Stored struct {
	State State
	// Limits are the limits in force. Number goes on with each change of them.
	Limits []Limit
	Number int64
	// Base is the Hash of the limits that the program of Limits was made with, and Made the store's
	// time when its process was started.
	Base uint64
	Made time.Duration
	// Lead is the largest claim of any process in this life of the key.
	Lead float64
	// Opening is what the waiting processes share next.
	Opening Opening
	// Holders are the processes that hold slots. It is nil until the first [Ask].
	Holders *Holders
	// Set is true if Limits outlive their levels: they differ from those of the program, or have a
	// version.
	Set bool

	trusted bool // Apply has left it so
}

// Clone returns a copy that shares with s only the limits and the holders, which do not change.
func (s *Stored) Clone() Stored {
	c := *s
	c.State = s.State.Clone()
	return c
}

// Apply carries op out on a key: it changes s to what it is at the store's time now, and returns
// the reply. now is in nanoseconds since any fixed moment. Apply is a pure function, without a
// clock or a lock. It changes nothing of op, so that a store which has lost a race can call it
// again with the state that it finds then.
//
// The times of a key must not go back. Apply takes a time that is behind the one before by a second
// or less for the one before: the key stands until time has caught up. So clocks which differ a
// little, or a time that was taken before another and comes after it, count no time twice. A larger
// step back is a clock that was set: the key loses the step, and nothing else. A step forward is
// time that has passed.
//
// If Apply cannot have left s as it is, for instance with a level that is not a number, s is
// corrupt: a new life begins with every limit full, and [Reply.Corrupt] is true. A store that
// cannot read what it has kept sets s.State.Speed to less than 0, which is corrupt too.
//
// A look, a refusal, a report without news and a Stale step leave the state as it is.
// [Reply.Changed] is then false, and a store need not write the key: the next step lets leak what
// has leaked since.
//
// Limits that count by the calendar need the time of day: for those now is the Unix time, in
// nanoseconds. A store whose clock is another one calls [Op.ApplyAt].
func (op *Op) Apply(s *Stored, now time.Duration) Reply { return op.ApplyAt(s, now, now) }

// ApplyAt is Apply where the store's time is not the Unix time, which is unix.
func (op *Op) ApplyAt(s *Stored, now, unix time.Duration) Reply {
	r := Reply{Limit: -1, Bid: op.Bid}
	r.Bid.Again = 0
	switch {
	case s.State.Speed == 0 && len(s.Limits) == 0: // there is no such key
		*s = Stored{State: New(now, len(op.Limits)), Number: s.Number + 1}
		s.own(op.Limits, op, now)
	case !s.trusted && !s.sound(now):
		r.Corrupt = true
		if !allSound(s.Limits) {
			s.own(op.Limits, op, now)
		}
		s.Holders = nil
		s.Opening = Opening{}
		if s.Lead = 0; s.Number < 1 || s.Number > mostKept {
			s.Number = 1
		}
		s.State.renew(s.Limits, now)
	case !s.trusted:
		s.State.look(s.Limits, false)
	}
	old := *s
	at := s.State.At
	ahead := s.State.Advance(s.Limits, now)
	s.State.Unix = add(unix, ahead)
	acted, timely, begun := false, true, false
	if op.Action == Replace {
		r.Stale = op.Number != s.Number
	} else if r.Stale = !Same(op.Limits, s.Limits); !r.Stale {
		timely, begun = s.roll(op.Periods)
		r.Untimely = !timely
	}
	switch {
	case r.Stale || !timely:
	case op.Action == Allot:
		acted = s.allot(&op.Ask, now-at, &r)
	default:
		acted = op.act(s, &r, now)
	}
	r.Number = s.Number
	if op.Number != s.Number || !Equal(op.Limits, s.Limits) { // a key that was not kept, or another life, may have had the same Number
		r.Limits, r.Base, r.Made = s.Limits, s.Base, s.Made
	}
	r.State = s.State
	if r.State.Parts = nil; op.Slots {
		r.State.Parts = s.State.Clone().Parts
	}
	if r.Expire = add(ahead, s.State.Expire(s.Limits)); s.Set {
		r.Expire = add(r.Expire, keepSet)
	}
	r.Expire = max(r.Expire, s.Holders.expire())
	if r.Refused {
		r.Wait = add(ahead, r.Wait)
	}
	s.State.Keep(ahead)
	s.trusted = true
	stepped := now < at && ahead == 0 && !r.Stale && timely
	if r.Changed = acted || begun || stepped || r.Corrupt; !r.Changed {
		// There is no change to keep. Each look at a slow clock rounds the dial down by part of a
		// nanosecond: callers that look often enough would stop it.
		s.State = old.State
	}
	return r
}

// Taken is the answer of [Stored.Take].
type Taken struct {
	// Done is true if Take has booked or refused the call. If it is false, the key is new or
	// corrupt, the limits in force have another Number, or the periods are those of another time.
	// An Op answers why.
	Done bool
	// Booked is true if the call is booked. If not, Wait and Limit are those of a Reply.
	Booked bool
	Limit  int
	Wait   time.Duration
	// Rem is what is left of a hold. If it is above 0, Why is the reason of the hold.
	Rem time.Duration
	Why uint8
}

// Take books one call and copies nothing: it does what [Op.ApplyAt] does for an Op with this
// Number, these Periods, the Wait most, and the only cost n. It asks for the charge to write to
// once it knows that it books the call, so that a refusal needs none. It allocates memory only for
// slots of a window. A refusal changes the key only if the store's clock steps back or a period
// begins. The answer goes to t, which is empty: to return it would take a tenth of the time.
func (s *Stored) Take(number int64, n *Units, periods []Period, most, now, unix time.Duration, t *Taken, charge func(now time.Duration) *Charge) {
	if !s.trusted || number != s.Number {
		return
	}
	old := s.State
	ahead := s.State.Advance(s.Limits, now)
	s.State.Unix = add(unix, ahead)
	timely, begun := s.roll(periods)
	if t.Done = timely; timely {
		var w time.Duration
		w, t.Limit, t.Booked = s.State.Wait(s.Limits, n)
		real := s.State.Real(w)
		if t.Booked = t.Booked && real <= min(most, farthest); t.Booked {
			c := charge(now)
			s.State.fill(s.Limits, n, w, c)
			c.Number = s.Number
		}
		t.Wait, t.Rem, t.Why = add(ahead, real), s.State.Rem, s.State.Why
	}
	if !t.Booked && !begun && (now >= old.At || ahead > 0 || !timely) {
		s.State = old
	} else {
		s.State.Keep(ahead)
	}
}

// own puts limits in force that a program was made with.
func (s *Stored) own(limits []Limit, op *Op, now time.Duration) {
	s.Base, s.Made = op.Base, sub(now, op.Age)
	s.set(limits)
}

func (s *Stored) set(limits []Limit) {
	s.Limits, s.Set = limits, Hash(limits) != s.Base || versionOf(limits) > 0
}

// sound reports whether Apply can have left s so.
func (s *Stored) sound(now time.Duration) bool {
	return allSound(s.Limits) && s.Number > 0 && s.Number < 2*mostKept && s.Lead >= 0 && s.Lead < 1e300 && s.Opening.sound() && s.Holders.sound() && s.State.sound(s.Limits, now)
}

// roll brings the limits by the calendar to the periods that the State's Unix time is in. It
// reports whether periods say which those are, without which a step does nothing, and whether one
// is another.
func (s *Stored) roll(periods []Period) (timely, begun bool) {
	for i := range s.Limits {
		if !s.Limits[i].Kind.Calendar() {
			continue
		}
		if i >= len(periods) || !periods[i].Sound() {
			return false, false
		}
		timely, other := period{}.roll(&s.State, i, &periods[i])
		if !timely {
			return false, false
		}
		begun = begun || other
	}
	return true, begun
}

// act carries out the reports and the action, and reports whether they have changed anything. A
// move is made only if the call can then be booked, unlike at the end of a period.
func (op *Op) act(s *Stored, r *Reply, now time.Duration) (acted bool) {
	if op.Move == nil || op.Action != Book || !op.Movable(s.Limits) {
		return op.do(s, r, now)
	}
	was, opening, c := s.State, s.Opening, *op.Move
	s.State = was.Clone()                // the caller has other copies of was, which share its parts
	r.Moved = s.State.Undo(s.Limits, &c) // before the reports: what they return is then not promised to it
	if acted = op.do(s, r, now); r.Moved && len(r.Charges) == 0 {
		s.State, s.Opening = was, opening
		r.Moved, r.Refused, r.Wait, r.Limit = false, false, 0, -1
		acted = op.do(s, r, now)
	}
	return acted
}

func (op *Op) do(s *Stored, r *Reply, now time.Duration) (acted bool) {
	before, opening := s.State, s.Opening
	for i := range op.Reports {
		acted = s.report(&op.Reports[i]) || acted
	}
	switch op.Action {
	case Book:
		for i := len(op.Unused) - 1; i >= 0; i-- {
			c := op.Unused[i]
			if !s.State.Undo(s.Limits, &c) {
				s.State.Settle(s.Limits, &c, &Units{})
			}
		}
		if op.Move == nil || r.Moved {
			op.book(s, r)
		}
		acted = acted || r.Moved || len(op.Unused) > 0 || len(r.Charges) > 0
	case Meter:
		r.Full = s.State.Meter(s.Limits, &op.Costs[0])
	case Resume:
		s.State.Resume(s.Limits)
		s.Lead, s.Opening = 0, Opening{}
	case Replace:
		acted = s.replace(op, now) || acted
	}
	return acted || op.Action == Meter || op.Action == Resume || opening != s.Opening || !before.equal(&s.State)
}

// equal reports whether two states of one time have the same clock.
func (s *State) equal(t *State) bool {
	return s.Rem == t.Rem && s.Skip == t.Skip && s.Speed == t.Speed && s.Epoch == t.Epoch && s.Fails == t.Fails && s.Why == t.Why && s.Row == t.Row
}

// Movable reports whether Move may be undone on a key with these limits, so that Costs are booked
// instead. It is false if the cost can never leave, or if a settle of the step adds units, because
// the new reservation could then be later.
func (op *Op) Movable(limits []Limit) bool {
	if len(op.Costs) == 0 {
		return false
	}
	for i := range limits {
		for j := range op.Reports {
			if r := &op.Reports[j]; r.Kind == Settled && r.Used[i] > r.Charge.N[i] {
				return false
			}
		}
	}
	n := Needs(limits, &op.Costs[0], op.Headroom)
	for i := range limits {
		if n[i] > limits[i].Capacity {
			return false
		}
	}
	return true
}

// Needs returns the units that have to be free in each limit for a call of n that keeps a fraction
// of it free, from 0 to 1.
func Needs(limits []Limit, n *Units, headroom float64) Units {
	needs := *n
	for i := range limits {
		if headroom > 0 && n[i] > 0 {
			needs[i] += limits[i].Headroom(headroom)
		}
	}
	return needs
}

// Headroom returns a fraction of the limit's capacity in whole units, rounded down: a limit of a
// capacity of 1, which only spaces calls, has none.
func (l *Limit) Headroom(fraction float64) float64 {
	return math.Floor(float64(l.Capacity*fraction) + 1e-9) // not fused, as in hot.lua
}

func (op *Op) book(s *Stored, r *Reply) {
	r.Charges = op.Into
	most := op.Wait
	if r.Moved {
		most = farthest // nothing has filled the limits since it was booked
	}
	weight := op.Weight
	if !(weight > 0) {
		weight = 1
	}
	weight = min(max(weight, leastWeight), mostWeight)
	claim, begins := op.Claim, op.Claim > s.Lead
	if begins {
		claim = 0
	}
	shares := op.Weight > 0 && op.Move == nil && op.Headroom <= 0
	var until time.Duration // how far away a process that is behind the lead may book
	for i := range op.Costs {
		n := &op.Costs[i]
		last := s.State.Last
		if i == 0 && op.After > 0 {
			passes, _ := dialOf(s.State.Speed, max(0, op.After-max(0, s.State.Rem)))
			s.State.Last = max(last, passes)
		}
		moved, booked := s.State.Last-last, len(r.Charges)
		r.Charges = append(r.Charges, Charge{})
		c := &r.Charges[booked]
		needs := Needs(s.Limits, n, op.Headroom)
		w, which, ok := s.State.Wait(s.Limits, &needs)
		wait := s.State.Real(w)
		if in := wait <= most && wait < farthest; !in { // farthest: it never can
			ok = false
		} else if shares {
			var again time.Duration
			last := op.Bid.Last && i == len(op.Costs)-1 && wait <= op.Horizon
			if ok, again = s.admits(&r.Bid, n, w, which, ok, weight, i > 0 && wait > op.Horizon, last); again > 0 {
				wait = s.State.Real(max(0, again-s.State.Dial()))
				r.Bid.Again = wait
			}
		}
		if !ok {
			s.State.Last, r.Charges = last, r.Charges[:booked]
			r.Refused, r.Wait, r.Limit = true, wait, which
			return
		}
		s.State.fill(s.Limits, n, w, c)
		c.Before -= moved // After has moved no booking
		c.Number = s.Number
		if i == 0 {
			until = add(wait, max(catchUp, time.Duration(min(farthest, float64(wait)*max(catchUpTimes, weight)))))
		}
		most = op.Horizon
		if op.Claim > 0 {
			claim += n[0] / weight
			s.Lead = max(s.Lead, claim)
			r.Claim = claim
			if begins {
				r.Claim = s.Lead
			} else if n[0] > 0 && claim+n[0]/weight <= s.Lead { // not beyond it, or all would book further ahead in each round
				most = max(most, until)
			}
		}
	}
}

// report carries out what an earlier call says, and reports whether that changes a level.
func (s *Stored) report(r *Report) (changed bool) {
	c, before := r.Charge, max(0, s.State.Rem)
	switch r.Kind {
	case Settled:
		if changed = !c.Settled && r.Used != c.N; changed {
			k := *c
			s.State.Settle(s.Limits, &k, &r.Used)
		}
	case Refused:
		s.State.Refused(s.Limits, r.Epoch, r.Wait, r.MaxWait, c)
	case Held, Delayed:
		s.State.Hold(s.Limits, r.Wait, c, r.Kind == Held)
	case Paused:
		s.State.Pause(s.Limits, r.Wait)
	case Succeeded:
		s.State.Succeeded(r.Epoch)
	case Remaining:
		for i := range s.Limits {
			if left := r.Used[i]; left >= 0 && left <= s.State.Since(s.Limits, c, i) {
				s.State.Hold(s.Limits, r.Wait, c, true)
			}
		}
	}
	if s.State.Rem > before {
		s.State.Why = r.Reason
		if s.State.Last > MaxReplyAge && r.Kind != Paused && r.Kind != Delayed && (c == nil || s.State.has(c)) && slices.ContainsFunc(s.Limits, func(l Limit) bool { return l.Slides() }) {
			s.Number++ // units are freed in the hold, and the reservations that wait for them would leave later
			s.State.Change(s.Limits, s.Limits, s.Number)
		}
	}
	return changed
}

// replace puts other limits in force. Equal limits are no change: a program may set what it reads
// as often as it reads it. Limits without a version take that in force, and those of a lower
// one are ignored.
func (s *Stored) replace(op *Op, now time.Duration) bool {
	limits := op.Replacement
	switch v, is := versionOf(s.Limits), versionOf(limits); {
	case is > 0 && is < v:
		return false
	case is < v:
		limits = slices.Clone(limits)
		for i := range limits {
			limits[i].Version = v
		}
	}
	if op.Own {
		s.Base, s.Made = op.Base, sub(now, op.Age)
	}
	if Equal(limits, s.Limits) {
		return op.Own
	}
	s.Opening = Opening{}
	s.Number++
	s.State.Change(s.Limits, limits, s.Number)
	s.set(slices.Clip(limits))
	return true
}

// year100 is longer than any limit takes to drain.
const year100 = 100 * 366 * 24 * time.Hour

// Sound reports whether r can be a reply to op. A user of a store checks that before it relies on
// the number of charges, the index of a limit or the state.
func (op *Op) Sound(r *Reply) bool {
	limits := op.Limits
	if len(r.Limits) > 0 {
		if limits = r.Limits; !allSound(limits) {
			return false
		}
	}
	if r.Stale || r.Untimely {
		return true
	}
	s := r.State
	if s.Parts == nil {
		var none [Max]Part
		s.Parts = none[:min(len(limits), Max)]
	}
	if a := &r.Allotment; op.Action == Allot && (min(a.Held, a.Others, a.Largest) < 0 || a.Again < 0 || a.Held > op.Ask.Keep+op.Ask.Want || float64(a.Free) > limits[0].Capacity) {
		return false
	}
	if b := &r.Bid; !(b.Calls >= 0 && b.Calls < 1e15 && math.Abs(b.Share) < 1e300) || b.Again < 0 {
		return false
	}
	return len(r.Charges) <= len(op.Costs) && r.Limit >= -1 && r.Limit < len(limits) && r.Wait >= 0 && (op.Action == Replace || Same(op.Limits, limits)) &&
		(len(r.Share) == 0 || len(r.Share) == len(limits) && allSound(r.Share)) && s.sound(limits, s.At)
}

// sound reports whether this package can have computed these numbers as those of a state.
func (s *State) sound(limits []Limit, now time.Duration) bool {
	old, dial := sub(now, s.At), sub(s.Dial(), max(0, s.Rem)) // a hold may have let the dial run ahead
	if !(s.Speed >= MinSpeed && s.Speed <= 1) || s.Last < -BookingGrace || s.Rem < -HoldMemory || !possible(s.Last) || !possible(s.Rem) || !possible(dial) ||
		s.Fails < NoRefusalYet || s.Fails > 1e9 || !s.Row.sound() || old > year100 || old < -year100 ||
		len(s.Parts) != len(limits) || s.Top < 0 || s.Top > s.IDs || s.IDs > 2*mostKept {
		return false
	}
	for i := range limits {
		p, most := &s.Parts[i], 1e15+float64(9.3e9*max(1, limits[i].Rate)) // what can be reserved, and a thousand calls of the largest cost
		within := func(x float64) bool { return x >= 0 && x <= most }
		if !within(s.Level[i]) || !within(s.Leaked[i]) || !within(p.Over) || !within(p.Owed) || !within(p.Units) || !(math.Abs(p.Ret) < 1e25) ||
			!possible(p.Begin) || !possible(p.End) || len(p.Slots) > maxSlots {
			return false
		}
		for k, t := range p.Slots {
			if !within(t.Units) || !possible(t.End) || k > 0 && t.End < p.Slots[k-1].End {
				return false
			}
		}
	}
	return true
}

// possible reports whether sums with a time do not overflow.
func possible(d time.Duration) bool { return d >= -farthest && d <= farthest }

// sound reports the same of a row. It accepts each Until: [Row.pass] bounds it.
func (r *Row) sound() bool {
	if r.Top == 0 {
		return *r == Row{}
	}
	return r.Top >= MinSpeed && r.Top <= 1 && r.Calls >= 0 && r.Calls <= mostCalls && r.Refused >= 0 && r.Refused <= mostRefused &&
		r.Per >= 0 && r.Per <= mostCalls && r.Fast >= 0 && r.Fast <= 1 && r.Trust >= -3 && r.Trust <= trusted
}
