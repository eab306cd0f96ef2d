// Package leak is the arithmetic of leaky buckets that share a clock: pure
// functions of a state and a time. It reads no clock, takes no lock and
// allocates nothing. Every store of this module computes with it, or is
// tested against it.
//
// Times are in nanoseconds of the store's clock, rates in units per second.
// Waits are rounded up and the dial down, so that nothing goes a nanosecond
// early.
package leak

import (
	"math"
	"time"
)

// Max is the largest number of limits of one bucket.
const Max = 8

const (
	// BookingGrace is how long a booked call may still be on its way out after its
	// place, so how long a booking counts as out.
	BookingGrace = 100 * time.Millisecond
	// Deaf is the longest that a worker uses a clock of which it has not heard anew.
	Deaf = time.Second
	// HoldMemory is how long the end of a hold is remembered.
	HoldMemory = 10 * time.Second
	// farthest is the longest wait that is booked: beyond it sums overflow.
	farthest = math.MaxInt64 / 2
	// Wobble is how far a stamp may be behind the one before and still be taken
	// for no step of the clock.
	Wobble = time.Second
	// MinSpeed is the slowest that a clock runs.
	MinSpeed = 0.01
	// MaxBack is the longest hold by repeated refusals alone.
	MaxBack = time.Hour
	// NoRefusalYet is the value of Fails in a life in which nothing was refused yet.
	NoRefusalYet = -2
	// HasSucceeded is the value of Fails when a call has succeeded since the last hold.
	HasSucceeded = -1
)

// Level is what a limit has to remember.
type Level struct {
	Level float64 // units in it, booked ones included
	// Ret is the units that were given back or written off. What has run past
	// the limit, wanted or not, is Rate*dial + Ret: keeping the two apart loses
	// no digits however long a life is.
	Ret float64
	// Top is the capacity from before it was lowered: so much may really be in
	// it, while nothing above it has left yet. 0: that is today's. Below 0: the
	// level counts on bookings, or on the rest of a hold, at a higher rate, which the
	// limit had then; without them -Top may be in it.
	Top float64
}

// brim returns what may really be in a limit of that capacity.
func (l *Level) brim(capacity float64) float64 { return max(capacity, math.Abs(l.Top)) }

// State is what a bucket keeps between two looks at it. Levels drain by the
// dial, which shows At - Born - Skip: real time, less what was lost to holds,
// slow-downs and steps back of the store's clock. The dial never runs faster
// than real time, and in one life it never goes back.
type State struct {
	At   time.Duration // the store's time of this state
	Born time.Duration // its creation, or the last Resume: it names this life of the key
	Skip time.Duration
	Rem  time.Duration // above 0: hold still to serve; else real time since the last one ended, to -HoldMemory
	Last time.Duration // dial time from now until the last booking goes, to -BookingGrace
	// Speed of the dial, MinSpeed to 1.
	Speed float64
	Epoch int64 // holds that counted; starts at Born, so that another life never matches
	Fails int   // refusals in a row with no success between, from 0; or HasSucceeded, or NoRefusalYet
	Why   uint8 // of the last hold, for its user
	Row   Row   `json:",omitzero"` // what the latest refusals have taught
	Level [Max]Level
}

// New returns the state of a bucket that nobody has used.
func New(now time.Duration) State {
	return State{At: now, Born: now, Rem: -HoldMemory, Last: -BookingGrace, Speed: 1, Epoch: int64(now), Fails: NoRefusalYet}
}

// Dial returns what the bucket's clock shows.
func (s *State) Dial() time.Duration { return s.At - s.Born - s.Skip }

// Units is one number per limit, in the order of the limits.
type Units [Max]float64

// leak lets dial time x pass.
func (s *State) leak(limits []Limit, x time.Duration) {
	if x <= 0 {
		return
	}
	sec := x.Seconds()
	for i := range limits {
		s.Level[i].Level = max(0, s.Level[i].Level-limits[i].Rate*sec)
	}
	s.Last = max(-BookingGrace, s.Last-min(x, math.MaxInt64/2))
}

// Advance brings the state to the store's time now. A clock that has stepped
// back loses the step and nothing else. If it is no further back than Wobble, it
// may come forward as much with the next stamp, and that must not count again:
// ahead is then what [State.Keep] is to be told before the state is kept.
func (s *State) Advance(limits []Limit, now time.Duration) (ahead time.Duration) {
	ahead = s.advance(limits, now)
	if !s.ahead() {
		for i := range limits {
			s.Level[i].Top = max(0, s.Level[i].Top)
		}
	}
	return ahead
}

func (s *State) advance(limits []Limit, now time.Duration) (ahead time.Duration) {
	e := sub(now, s.At)
	s.At = now
	s.Row.pass(now)
	if e <= 0 {
		s.Skip = add(s.Skip, e)
		if e < -Wobble {
			e = 0
		}
		return -e
	}
	x := max(0, e-max(0, s.Rem))
	s.Rem = max(-HoldMemory, sub(s.Rem, e))
	x, s.Speed = dialOf(s.Speed, x)
	s.Skip += e - x
	s.leak(limits, x)
	return 0
}

// Keep makes a state what is to be kept of it: as of the latest stamp that it has
// seen, from which Advance has found it to be that far ahead.
func (s *State) Keep(ahead time.Duration) {
	s.At = add(s.At, ahead)
	s.Skip = add(s.Skip, ahead)
}

// Wait returns the dial time until a call of n could go, after all that are
// booked, and which limit it would wait for (-1: for the order only).
func (s *State) Wait(limits []Limit, n *Units) (time.Duration, int) {
	w, which := max(0, s.Last), -1
	for i := range limits {
		// A limit that the call does not fill cannot be broken by it.
		if n[i] == 0 {
			continue
		}
		if d := limits[i].Above(s.Level[i].Level+n[i], limits[i].Capacity); d > w {
			w, which = d, i
		}
	}
	return w, which
}

// Real returns the real time until the dial has advanced by w, from now on.
func (s *State) Real(w time.Duration) time.Duration {
	if s.Speed < 1 {
		w = realOf(s.Speed, w)
	}
	return add(max(0, s.Rem), w)
}

// Fill books the next place for a call of n, if that is no further away in
// real time than most, and notes in c what was charged. It returns the real
// time until the place, or until what would have been one, and the limit that
// the call waits for.
func (s *State) Fill(limits []Limit, n *Units, most time.Duration, c *Charge) (real time.Duration, which int, ok bool) {
	w, which := s.Wait(limits, n)
	real = s.Real(w)
	if real > min(most, farthest) {
		return real, which, false
	}
	dial := s.Dial()
	*c = Charge{N: *n, Place: dial + w, Before: dial + s.Last, Born: s.Born, Epoch: s.Epoch}
	for i := range limits {
		l := &s.Level[i]
		run := limits[i].Rate * w.Seconds()
		if n[i] > 0 {
			// The joint rule: a call that waits for one limit fills the others
			// when it goes, not now.
			c.Up[i] = max(0, run-l.Level)
			l.Level = max(l.Level, run) + n[i]
		}
		c.Y[i] = l.Level - run + l.Ret
	}
	c.Free = c.Freed(limits)
	s.Last = max(s.Last, w)
	if s.Rem > 0 {
		s.Last = max(s.Last, time.Microsecond)
	}
	s.Row.call()
	return real, which, true
}

// Meter fills every limit by n, up to the brim but never below what is booked,
// and reports which of them this fill brought to the brim. What is missing of half
// the least cost is rounding: ten fills of 0.1 bring one unit to the brim.
func (s *State) Meter(limits []Limit, n *Units) (full [Max]bool) {
	for i := range limits {
		l, c := &s.Level[i], limits[i].Capacity
		full[i] = n[i] > 0 && l.Level+n[i] >= c*(1-0.5e-9)
		l.Level = max(l.Level, min(l.Level+n[i], c))
	}
	return full
}

// Due returns the real time from this state until the dial shows place and no
// hold is left to serve, and how far the dial is past place already.
func (s *State) Due(place time.Duration) (in, late time.Duration) {
	w := sub(place, s.Dial())
	return s.Real(max(0, w)), max(0, sub(0, w))
}

// Idle reports whether a new state would behave like this one.
func (s *State) Idle(limits []Limit) bool { return s.Expire(limits) <= 0 }

// Expire returns the real time until the state is idle, if it is left alone:
// drained, with no booking out, unheld, at full speed, and with nothing refused lately.
func (s *State) Expire(limits []Limit) time.Duration {
	w := s.Last + BookingGrace
	for i := range limits {
		w = max(w, lasts(s.Level[i].Level, limits[i].Rate))
	}
	return max(s.Real(w), add(max(0, s.Rem), recovery(s.Speed)), add(s.Rem, HoldMemory), s.Row.left(s.At))
}

// Void makes void what is booked for later than Deaf from now, and reports whether
// there may be any: before limits are replaced, so that nobody waits by the old
// ones. Nothing comes back to the calls of before. A place that is nearer may be
// used before its worker hears of it, and stands. Without the others no limit is
// fuller than those fill it.
func (s *State) Void(limits []Limit) bool {
	if s.Last <= Deaf {
		return false
	}
	for i := range limits {
		l := &s.Level[i]
		brim := l.brim(limits[i].Capacity) + limits[i].Rate*Deaf.Seconds()
		if l.Top < 0 {
			l.Level = brim
		}
		l.Level = min(l.Level, brim)
	}
	s.Last = Deaf
	return true
}

// Change replaces the limits. from[i] is the index among the old limits of the
// i-th new one, or -1 for one that was not there: it starts empty. unknown[i] is the
// most that may be booked, and has not gone, of a limit that was not in force until
// now, and so does not count it; +Inf: nobody knows. Nothing refills, and nobody
// overtakes the booked, who go at their places: at the last of them no limit is less
// full than they leave it.
func (s *State) Change(old, limits []Limit, from []int, unknown *Units) {
	dial, last := s.Dial().Seconds(), max(0, s.Last).Seconds()
	was := s.Level
	s.Level = [Max]Level{}
	for i := range limits {
		l, rate := &s.Level[i], limits[i].Rate
		if j := from[i]; j >= 0 {
			*l = was[j]
			// What has run past so far stays what it was.
			l.Ret += (old[j].Rate - rate) * dial
			top := l.brim(old[j].Capacity)
			switch {
			case l.Top < 0 && s.ahead(), rate < old[j].Rate && s.Rem > 0:
				l.Top = -max(limits[i].Capacity, top)
			case top > limits[i].Capacity && (l.Level > limits[i].Capacity || s.Rem > 0): // a hold may have let it leak ahead
				l.Top = top
			default:
				l.Top = 0
			}
			if rate > old[j].Rate {
				l.Level += (rate - old[j].Rate) * min(last, l.Level/old[j].Rate)
			}
		}
		if last > 0 && unknown[i] > 0 {
			brim := limits[i].Capacity + rate*last
			l.Level = max(l.Level, min(brim, max(l.Level, rate*last)+unknown[i]))
		}
	}
}

// Load returns a level as of now, under the shape that its limit has now. It
// was left at dial time at, under the shape that the limit had then. It leaks since
// by the lower of both rates, as nobody knows when what was booked then has gone; but
// up to the last booking that is known nothing new can go, and so long it leaks as it
// was booked. A dial that a Resume has set back since has taken the leak back.
func (s *State) Load(l Level, at time.Duration, was, is *Limit) Level {
	dial, top := s.Dial(), l.brim(was.Capacity)
	ahead := s.ahead() && (l.Top < 0 || is.Rate < was.Rate)
	if was.Rate != is.Rate {
		until := at
		if is.Rate > was.Rate {
			until = max(at, dial)
		}
		if s.Last > 0 {
			until = max(until, add(dial, s.Last))
		}
		x := min(sub(until, at).Seconds(), l.Level/was.Rate)
		l.Level += (is.Rate - was.Rate) * x
		// What has run past until then stays what it was.
		l.Ret += (was.Rate - is.Rate) * until.Seconds()
	}
	if run := is.Rate * sub(dial, at).Seconds(); run >= 0 {
		l.Level = max(0, l.Level-run)
	} else {
		l.Level = max(l.Level, min(l.Level-run, max(is.Capacity, top)))
	}
	switch {
	case ahead:
		l.Top = -max(is.Capacity, top)
	case top > is.Capacity: // also of a level that is below: a hold may have let it leak ahead
		l.Top = top
	default:
		l.Top = 0
	}
	return l
}

// ahead reports whether levels count on what a Resume ends.
func (s *State) ahead() bool { return s.Last > 0 || s.Rem > 0 }

// Turn notes that limits of which others were in use until now have come to be
// used. The last booking may then be one of which they know nothing: those that
// they know can no longer be undone, as the last one can.
func (s *State) Turn(limits []Limit) {
	for i := range limits {
		l := &s.Level[i]
		l.Ret += 1e-9 * max(l.Level, limits[i].Capacity)
	}
}

// Resume ends a hold and a slow-down, and begins a new life: what was booked
// is void, and what has been charged does not come back. The dial goes on, for
// levels that are kept elsewhere, but back by what the hold may have let leak
// ahead. A limit whose level counts on either at another rate is full.
func (s *State) Resume(limits []Limit) {
	held := max(0, s.Rem)
	for i := range limits {
		// A hold without bookings let the limits leak ahead: take that back.
		l := s.Level[i]
		brim := l.brim(limits[i].Capacity)
		if l.Level += limits[i].Rate * held.Seconds(); l.Top < 0 && s.ahead() {
			l.Level = brim
		}
		s.Level[i] = Level{Level: min(brim, l.Level)}
		if brim > limits[i].Capacity {
			s.Level[i].Top = brim
		}
	}
	born := s.At
	if born <= s.Born {
		born = s.Born + 1
	}
	dial := max(-farthest, sub(s.Dial(), held))
	epoch := s.Epoch + 1
	at, level := s.At, s.Level
	*s = New(born)
	s.At, s.Skip, s.Level, s.Epoch = at, at-born-dial, level, epoch
}
