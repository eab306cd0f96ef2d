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

// Level is what a key keeps of a leaky limit. Of another one it tells what its [Log] comes
// to: Level is the units that count, Top and Ret are in how many nanoseconds of bucket time the
// first and the last of them go, or of real time for a calendar.
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
	// Logs are of the limits that are no leaky ones. A copy of the State shares them, and
	// the State in a Reply has none.
	Logs *Logs `json:",omitempty"`
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Logs = s.Logs.clone()
	return c
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
		if limits[i].Kind == Leaky {
			s.Level[i].Level = max(0, s.Level[i].Level-limits[i].Rate*sec)
		}
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
	s.look(limits)
	return ahead
}

// look brings the levels of limits that are no leaky ones to what their logs come to.
func (s *State) look(limits []Limit) {
	if s.Logs == nil {
		return
	}
	for i := range limits {
		l := &limits[i]
		if l.Kind == Leaky {
			continue
		}
		level, next, empty := s.log(l).level(l, s)
		s.Level[i] = Level{Level: level, Top: float64(next), Ret: float64(empty)}
	}
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
//
// Of a State without its logs it is a lower bound.
func (s *State) Wait(limits []Limit, n *Units) (time.Duration, int) {
	at, _ := s.wait(limits, n, true)
	return at.w, at.which
}

// place is where a call could go: the dial time from now, the limit that it would wait for, and
// whether a calendar books so far ahead.
type place struct {
	w     time.Duration
	which int
	ok    bool
}

// wait returns where a call of n could be booked, or, if back, the first time at which it could go
// if it came back then: all of a Fixed limit may have come back at once, on which no booking
// counts. until is the place if a Fixed limit asks for it that is known to come back so, then or
// before; else it is an earlier one.
func (s *State) wait(limits []Limit, n *Units, back bool) (at place, until time.Duration) {
	w, which, ok := max(0, s.Last), -1, true
	until = -1
	calendars := false
	for i := range limits {
		// The call cannot break a limit that it does not fill.
		if n[i] == 0 {
			continue
		}
		l, level, d := &limits[i], &s.Level[i], time.Duration(0)
		switch {
		case l.Kind == Leaky:
			d = l.Above(level.Level+n[i], l.Capacity)
		case s.Logs == nil:
			if !l.fits(level.Level + n[i]) {
				d = time.Duration(level.Top)
			}
		case l.Kind.Calendar():
			calendars = true
		default:
			g := s.log(l)
			if d = g.wait(l, n[i], w, s); l.Kind == Fixed && d > w {
				if all, known := g.back(l, s); known && all <= d {
					if until = d; back {
						d = max(w, all)
					}
				}
			}
		}
		if d > w {
			w, which = d, i
		}
	}
	// Each of those may ask for a later place than the others, so once more until none does. And
	// what is over now is so no more when a slow dial has fallen further behind, unless the call is
	// booked now.
	slow := back && s.Speed < 1 && s.Logs != nil
	for again := calendars || slow; again && ok; {
		again = false
		for i := range limits {
			l := &limits[i]
			if n[i] > 0 && l.Kind == Fixed && slow {
				if g := s.log(l); g.over(l, s) && !g.sure(l, s, s.Real(w)-w) {
					if d := g.moves(l, n[i], w, s); d > w {
						w, which, again = d, i, true
					}
				}
			}
			if n[i] == 0 || !l.Kind.Calendar() {
				continue
			}
			c := &s.log(l).Calendar
			unix := add(s.At, c.Off)
			t := add(unix, s.Real(w))
			at, books := c.wait(l, n[i], t)
			if at > t {
				w, which, again = s.reach(sub(at, unix)), i, true
			}
			ok = ok && books
		}
	}
	return place{w, which, ok}, until
}

// reach returns the dial time after which a real time has passed.
func (s *State) reach(x time.Duration) time.Duration {
	y := sub(x, max(0, s.Rem))
	if y <= 0 {
		return 0
	}
	w, _ := dialOf(s.Speed, y)
	for s.Real(w) < x { // dialOf rounds down
		w++
	}
	return w
}

// Real returns the real time in which the dial advances by w from now on.
func (s *State) Real(w time.Duration) time.Duration {
	if s.Speed < 1 {
		w = realOf(s.Speed, w)
	}
	return add(max(0, s.Rem), w)
}

// Fill books the next place for a call of n, if that is at most so far away in real time, and
// writes what it has charged to c. If not, it changes nothing. It returns the real time until the
// place, and the limit that the call waits for. Of a call that is refused both are as Wait has
// them: that may be less than most, because no booking counts on the end of a Fixed limit's window.
func (s *State) Fill(limits []Limit, n *Units, most time.Duration, c *Charge) (real time.Duration, which int, ok bool) {
	return s.fill(limits, n, most, false, c)
}

// fill is Fill. A call that returns is refused, too, if it would wait for a Fixed limit of which
// all will have come back when it is its turn.
func (s *State) fill(limits []Limit, n *Units, most time.Duration, returns bool, c *Charge) (real time.Duration, which int, ok bool) {
	at, until := s.wait(limits, n, false)
	w, which := at.w, at.which
	real = s.Real(w)
	if real > min(most, farthest) || !at.ok || returns && until == w {
		if until >= 0 || s.Speed < 1 {
			at, _ = s.wait(limits, n, true)
		}
		return s.Real(at.w), at.which, false
	}
	dial := s.Dial()
	*c = Charge{N: *n, Place: dial + w, Before: dial + s.Last, Born: s.Born, Epoch: s.Epoch}
	for i := range limits {
		if limits[i].Kind != Leaky {
			s.fillLog(&limits[i], n[i], c, i)
			continue
		}
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
	s.look(limits)
	return real, which, true
}

// fillLog is Fill for the limit i, which is l and no leaky one.
func (s *State) fillLog(l *Limit, n float64, c *Charge, i int) {
	g := s.log(l)
	switch {
	case n == 0:
		g.Beside = c.Place
	case l.Kind.Calendar():
		in := s.Real(c.Place - s.Dial())
		g.took(n)
		c.Up[i] = g.Calendar.fill(n, add(add(s.At, g.Calendar.Off), in))
	default:
		g.fill(l, n, c.Place, s)
	}
	c.Y[i] = g.Total
}

// Meter fills every limit by n, up to the brim but never below what is booked, and reports
// which of them it has brought to the brim. A level that misses the brim by half of the
// least cost has reached it: ten fills of 0.1 bring one unit to the brim.
func (s *State) Meter(limits []Limit, n *Units) (full [Max]bool) {
	for i := range limits {
		l, c := &s.Level[i], limits[i].Capacity
		full[i] = n[i] > 0 && l.Level+n[i] >= c*(1-0.5e-9)
		more := min(n[i], c-l.Level)
		switch kind := limits[i].Kind; {
		case more <= 0, kind != Leaky && more <= c*0.5e-9: // of the rounding of sums no entry is made
		case kind == Leaky:
			l.Level += more
		case kind.Calendar(): // spent now
			s.fillLog(&limits[i], more, &Charge{Place: s.Dial() - max(0, s.Rem)}, i)
		default:
			s.fillLog(&limits[i], more, &Charge{Place: s.Dial() + max(0, s.Last)}, i)
		}
	}
	s.look(limits)
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
	w, left := s.Last+BookingGrace, time.Duration(0)
	for i := range limits {
		switch kind := limits[i].Kind; {
		case kind == Leaky:
			w = max(w, lasts(s.Level[i].Level, limits[i].Rate))
		case kind.Calendar():
			left = max(left, time.Duration(s.Level[i].Ret))
		default:
			w = max(w, time.Duration(s.Level[i].Ret))
		}
	}
	if s.Logs != nil {
		for i := range *s.Logs {
			dial, real := (*s.Logs)[i].kept(limits, s.Dial(), s.At)
			w, left = max(w, dial), max(left, real)
		}
	}
	return max(left, s.Real(w), add(max(0, s.Rem), recovery(s.Speed)), add(s.Rem, HoldMemory), s.Row.left(s.At))
}
