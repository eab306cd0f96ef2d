package leak

import (
	"math"
	"time"
)

// Max is the largest number of limits of one bucket.
const Max = 8

const (
	// BookingGrace is how long a booking counts as out after its place: its call may
	// leave late.
	BookingGrace = 100 * time.Millisecond
	// Deaf is the longest time for which a worker relies on a reply. After that it hears
	// the clock again before it lets a call go.
	Deaf = time.Second
	// HoldMemory is how long a key remembers when its last hold ended.
	HoldMemory = 10 * time.Second
	// farthest is the longest wait that Fill books: beyond it sums overflow.
	farthest = math.MaxInt64 / 2
	// Wobble is how far a time of the store may be behind the one before without counting
	// as a step of the clock.
	Wobble = time.Second
	// MinSpeed is the lowest speed of a clock.
	MinSpeed = 0.01
	// MaxBack is the longest hold to which refusals in a row are doubled.
	MaxBack = time.Hour
	// NoRefusalYet is the value of Fails while the API has refused no call of this life.
	NoRefusalYet = -2
	// HasSucceeded is the value of Fails when a call has succeeded since the last hold.
	HasSucceeded = -1
)

// Level is what a key keeps of a limit.
type Level struct {
	Level float64 // the units in it, those of booked calls included
	// Ret is the units that were given back or written off. What has run past the
	// limit in this life is Rate*dial + Ret. To keep the two apart loses no digits
	// however long a life is.
	Ret float64
	// Top is the larger capacity from before the limit was lowered: so much may still
	// be in it. 0: no more than today's capacity. Below 0 the level counts on
	// bookings, or on the rest of a hold, at a higher rate that the limit had then. A
	// Resume ends those, and then -Top may be in it.
	Top float64
}

// brim returns the most that may be in a limit of that capacity without a booking.
func (l *Level) brim(capacity float64) float64 { return max(capacity, math.Abs(l.Top)) }

// State is the clock of a key and its levels. Levels leak by the key's bucket time, the
// dial, which shows At - Born - Skip: real time, less what was lost to holds, slow-downs and
// steps back of the store's clock. The dial never runs faster than real time, and in one
// life it never goes back.
type State struct {
	At   time.Duration // the store's time at which this is true
	Born time.Duration // when this life of the key began, which names it
	Skip time.Duration // the real time of this life that the dial has not run
	Rem  time.Duration // above 0: what is left of a hold; else minus the time since the last one ended, to -HoldMemory
	Last time.Duration // the place of the last booking, as dial time from now, to -BookingGrace
	// Speed of the dial, MinSpeed to 1.
	Speed float64
	Epoch int64 // episodes of refusals; it starts at Born, so that another life never matches
	Fails int   // refusals in a row with no success between, from 0; or HasSucceeded, or NoRefusalYet
	Why   uint8 // the reason of the last hold, for the key's user
	Row   Row   `json:",omitzero"` // what the latest refusals have taught
	Level [Max]Level
}

// New returns the state of a key that nobody has used.
func New(now time.Duration) State {
	return State{At: now, Born: now, Rem: -HoldMemory, Last: -BookingGrace, Speed: 1, Epoch: int64(now), Fails: NoRefusalYet}
}

// Dial returns the bucket time: what the key's clock shows.
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

// Advance brings the state to the store's time now. A clock that has stepped back loses
// the step and nothing else. If the step is no longer than Wobble, the next time may come
// forward as much, and must not count again: the caller passes ahead to [State.Keep] before
// it keeps the state.
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

// Keep moves the state to the latest time that it has seen, which is ahead of At by what
// Advance has returned. The state then stands until the store's time has caught up.
func (s *State) Keep(ahead time.Duration) {
	s.At = add(s.At, ahead)
	s.Skip = add(s.Skip, ahead)
}

// Wait returns the dial time until a call of n could go, after all that are booked, and
// the index of the limit that it would wait for; -1: only for those who are booked.
func (s *State) Wait(limits []Limit, n *Units) (time.Duration, int) {
	w, which := max(0, s.Last), -1
	for i := range limits {
		// The call cannot break a limit that it does not fill.
		if n[i] == 0 {
			continue
		}
		if d := limits[i].Above(s.Level[i].Level+n[i], limits[i].Capacity); d > w {
			w, which = d, i
		}
	}
	return w, which
}

// Real returns the real time in which the dial advances by w from now on.
func (s *State) Real(w time.Duration) time.Duration {
	if s.Speed < 1 {
		w = realOf(s.Speed, w)
	}
	return add(max(0, s.Rem), w)
}

// Fill books the next place for a call of n, if that is at most so far away in real time,
// and writes what it has charged to c. If not, it changes nothing. It returns the real time
// until the place in both cases, and the limit that the call waits for, as Wait does.
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

// Meter fills every limit by n, up to the brim but never below what is booked, and reports
// which of them it has brought to the brim. A level that misses the brim by half of the
// least cost has reached it: ten fills of 0.1 bring one unit to the brim.
func (s *State) Meter(limits []Limit, n *Units) (full [Max]bool) {
	for i := range limits {
		l, c := &s.Level[i], limits[i].Capacity
		full[i] = n[i] > 0 && l.Level+n[i] >= c*(1-0.5e-9)
		l.Level = max(l.Level, min(l.Level+n[i], c))
	}
	return full
}

// Due returns the real time from this state until the dial shows place and no hold is left
// to serve, and how far the dial is past place already. A call may go when in is 0.
func (s *State) Due(place time.Duration) (in, late time.Duration) {
	w := sub(place, s.Dial())
	return s.Real(max(0, w)), max(0, sub(0, w))
}

// Idle reports whether a new state would behave like this one.
func (s *State) Idle(limits []Limit) bool { return s.Expire(limits) <= 0 }

// Expire returns the real time until the state is idle, if nobody uses the key: the levels
// are 0, no booking is out, nothing holds or slows it, and no refusal is remembered.
func (s *State) Expire(limits []Limit) time.Duration {
	w := s.Last + BookingGrace
	for i := range limits {
		w = max(w, lasts(s.Level[i].Level, limits[i].Rate))
	}
	return max(s.Real(w), add(max(0, s.Rem), recovery(s.Speed)), add(s.Rem, HoldMemory), s.Row.left(s.At))
}

// Void makes the places void that are later than Deaf from now, and reports whether there
// may be any. It comes before a change of limits, so that nobody waits by the old ones.
// Nothing comes back to calls from before. A nearer place stands, because its worker may use
// it before it hears of the change. Without the void places no limit is fuller than the
// nearer ones can fill it.
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

// Change replaces the limits. from[i] is the index of the i-th new limit among the old
// ones; -1: it is new, and starts empty. A new limit knows nothing of the calls that are
// booked and have not gone: unknown[i] is the most that they may take of it; +Inf: nobody
// knows. Nothing refills. The booked go at their places and nobody overtakes them: when the
// last of them goes, each limit is at least as full as they leave it.
func (s *State) Change(old, limits []Limit, from []int, unknown *Units) {
	dial, last := s.Dial().Seconds(), max(0, s.Last).Seconds()
	was := s.Level
	s.Level = [Max]Level{}
	for i := range limits {
		l, rate := &s.Level[i], limits[i].Rate
		if j := from[i]; j >= 0 {
			*l = was[j]
			// Rate*dial + Ret, what has run past so far, stays what it was.
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

// Load brings a level from one worker's shape of its limit to another's. The level l was
// true when the dial showed at, for a worker whose limit was was; the result is true now, for
// a worker whose limit is is. Up to the last booking that is known nothing new can go, and
// the level leaks as it was booked. Since then it leaks by the lower of both rates, because
// nobody knows when the calls that were booked then have gone. If a Resume has set the dial
// back to before at, Load takes the leak back.
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
		// Rate*dial + Ret, what has run past until then, stays what it was.
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

// ahead reports whether levels count on bookings or on the rest of a hold, which a Resume
// ends.
func (s *State) ahead() bool { return s.Last > 0 || s.Rem > 0 }

// Turn notes that the key was used with other limits until now. The last booking may then
// be one of which these limits know nothing, so Turn makes their levels differ by a billionth
// from what any charge expects: Unbook takes none of those for the last one.
func (s *State) Turn(limits []Limit) {
	for i := range limits {
		l := &s.Level[i]
		l.Ret += 1e-9 * max(l.Level, limits[i].Capacity)
	}
}

// Resume ends a hold and a slow-down, and begins a new life: the booked places are void, and
// nothing comes back of what calls were charged. The dial does not begin anew, because
// levels in Stored.Others count by it; it goes back by what the hold may have let leak ahead
// of real time. A limit whose level counts on bookings, or on the hold, at another rate is
// full.
func (s *State) Resume(limits []Limit) {
	held := max(0, s.Rem)
	for i := range limits {
		// A hold without bookings has let the limits leak ahead: take that back.
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
