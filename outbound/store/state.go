package store

import (
	"math"
	"slices"
	"time"
)

const (
	// BookingGrace is how long a reservation counts as out after its time: its call may leave late.
	BookingGrace = 100 * time.Millisecond
	// MaxReplyAge is the longest time for which a process relies on a reply. After that it asks for the
	// clock again before it lets a call leave.
	MaxReplyAge = time.Second
	// HoldMemory is how long a key remembers when its last hold ended.
	HoldMemory = 10 * time.Second
	// Wobble is how far a time of the store may be behind the one before without counting as a
	// step of the clock.
	Wobble = time.Second
	// MinSpeed is the lowest speed of a clock.
	MinSpeed = 0.01
	// MaxBackoff is the longest hold to which consecutive refusals are doubled.
	MaxBackoff = time.Hour
	// NoRefusalYet is the value of Fails before the API has refused a call of this life.
	NoRefusalYet = -2
	// HasSucceeded is the value of Fails when a call has succeeded since the last hold.
	HasSucceeded = -1
	// farthest is the longest wait that can be reserved: beyond it sums overflow.
	farthest = math.MaxInt64 / 2
)

// Units is one number for each limit, in the order of the limits.
type Units [Max]float64

// State is the clock of a key, and its levels. Levels leak by the key's clock, which shows
// At - Born - Skip: real time, less what was lost to holds, slow-downs and steps back of the
// store's clock. It never runs faster than real time. Until Born changes it never goes back.
type State struct {
	At   time.Duration // the store's time at which this is true
	Born time.Duration // when the key began, or began again
	Skip time.Duration // the real time since Born that the key's clock has not run
	Rem  time.Duration // above 0: what is left of a hold; else minus the time since the last one ended, to -HoldMemory
	Last time.Duration // the last reservation, from now on the key's clock, to -BookingGrace
	// Speed of the key's clock, MinSpeed to 1.
	Speed float64
	Epoch int64 // counts series of refusals, from Born on, so that none from before matches
	Fails int   // refusals since the last success, from 0; or HasSucceeded, or NoRefusalYet
	Why   uint8 // the reason of the last hold, for the key's user
	// Corrupt is true if the key was found in a state that cannot be, and every limit was
	// taken for full. A Resume ends that, and takes out what no call has taken.
	Corrupt bool `json:",omitzero"`
	// Resumed is true if a Resume has begun this life, and has counted what other processes may let
	// leave in its first second.
	Resumed bool `json:",omitzero"`
	Row     Row  `json:",omitzero"` // what the latest refusals have taught
	// Top is the number of the last booking while it can be undone, else 0. IDs is the largest
	// number that was given.
	Top, IDs int64
	Level    Units // what counts of each limit now
	Leaked   Units `json:",omitzero"` // what has leaked from each ahead of real time, because of a hold
	// Parts are what the kinds of limits need in addition. A State in a Reply has none.
	Parts []Part `json:",omitempty"`
	// Unix is the Unix time at At. It is known after a step only.
	Unix time.Duration `json:"-"`
}

// Part is what a key keeps of one limit in addition to its level. Each kind uses some of the
// fields.
type Part struct {
	// Ret is, of a leaky limit, the units that were returned or written off: Rate times the key's
	// clock, plus Ret, has run past it since Born. Of other kinds it is the units that were filled
	// since Born.
	Ret float64 `json:",omitzero"`
	// Over is the larger capacity that a leaky limit had while its level may still exceed today's. If
	// it is zero, at most today's capacity can be in it.
	Over float64 `json:",omitzero"`
	// Owed is by how much the level of a leaky limit is lower than today's rate explains,
	// because it counts on reservations, or on the rest of a hold, at a higher rate.
	Owed float64 `json:",omitzero"`
	// Since is the Number of the limits from which on a charge can be returned.
	Since int64 `json:",omitzero"`
	// Begin and End are those of a calendar's period, as Unix times. For a fixed window Begin is
	// the first call, and End is a window after the last, on the key's clock. A window returns
	// nothing to calls before Begin.
	Begin, End time.Duration `json:",omitzero"`
	// Units is what has been filled in a fixed window.
	Units float64 `json:",omitzero"`
	// Sure is true if a fixed window began with the call at Begin, when State.Skip was Skip. For a
	// calendar it is true in the period when the key was found corrupt.
	Sure  bool          `json:",omitzero"`
	Skip  time.Duration `json:",omitzero"`
	Slots []Slot        `json:",omitempty"` // of a window, in the order of their ends
}

// Slot is the units of a window that count until the key's clock shows End.
type Slot struct {
	End   time.Duration
	Units float64
}

// law is what a kind of limit does. i is the index of the limit l. Times that are called w are
// dial time from now.
type law interface {
	// scripted reports whether the script of package redisstore knows kind k, which has this law. Each
	// law names its kinds, so a law that embeds another does not inherit the answer.
	scripted(k Kind) bool
	// shaped reports whether the limit's numbers fit to its kind.
	shaped(l *Limit) bool
	// look sets the level to what counts now. If onward is true, it was right at an earlier time of
	// the dial, and nothing has changed since.
	look(s *State, l *Limit, i int, onward bool)
	// leak lets dial time pass.
	leak(s *State, l *Limit, i int, sec float64)
	// wait returns the first time, not before w, at which n units have capacity. If no call can be
	// booked for that time, and a caller must retry then, ok is false.
	wait(s *State, l *Limit, i int, n float64, w time.Duration) (at time.Duration, ok bool)
	// fill takes n units at w, which may be 0, and notes in c what it has taken.
	fill(s *State, l *Limit, i int, n float64, w time.Duration, c *Charge)
	// undo takes back what fill has taken for the last booking.
	undo(s *State, l *Limit, i int, c *Charge)
	// settle adds the units beyond a charge, or returns what is safe. known is false if nothing
	// can be returned.
	settle(s *State, l *Limit, i int, c *Charge, more float64, known bool)
	// since returns the units that calls have taken since c and that have left.
	since(s *State, l *Limit, i int, c *Charge) float64
	// freed returns how many seconds after its departure a call of n units no longer holds others
	// back.
	freed(l *Limit, n float64) float64
	// hold notes a hold that began at a time of the dial, and in which the dial stands for so long.
	// If room is not below 0, the limit has capacity for no more units when the last reservation
	// leaves.
	hold(s *State, l *Limit, i int, began, stands time.Duration, room float64)
	// slides reports whether each call counts for a Window from when it left.
	slides() bool
	// behind returns a lower bound of the dial time, not before w, at which the last of calls that
	// take n units in all can leave.
	behind(s *State, l *Limit, i int, n float64, w time.Duration) time.Duration
	// void takes out reservations later than MaxReplyAge. It reports whether charges from before can still
	// be returned.
	void(s *State, l *Limit, i int) bool
	// resume takes out all reservations later than [MaxReplyAge]. Then the dial goes back by back, and
	// the last of the rest is last away. No hold delays what leaves within soon.
	resume(s *State, l *Limit, i int, back, soon, last time.Duration)
	// change brings the level from the limit old to l. It reports whether charges from before
	// can still be returned.
	change(s *State, old, l *Limit, i int) bool
	// shares returns for how long after an [Opening] the shares of its units are kept for their
	// processes. It is 0 if units leak, so that the level says when calls may leave.
	shares(l *Limit) time.Duration
	// share makes the limit one of a part of its calls, whose Capacity and Rate it has already. Where
	// a limit of less would admit no call, its capacity is whole.
	share(l *Limit, whole float64)
	// owes is [Limit.Owes].
	owes(l *Limit, n, level float64, d time.Duration) float64
	// empty returns the dial time and the real time until nothing counts.
	empty(s *State, l *Limit, i int) (dial, real time.Duration)
}

var laws = [...]law{Leaky: leaky{}, Window: window{}, Fixed: fixed{}, Hourly: period{}, Daily: period{}, Monthly: period{}, Weekly: period{}}

// law returns what the limit's kind does. Most limits are leaky: what each booking needs of them
// asks leaky without an interface, in half the time.
func (l *Limit) law() law { return laws[l.Kind] }

// New returns the state of a key that was never used.
func New(now time.Duration, limits int) State {
	return State{At: now, Born: now, Rem: -HoldMemory, Last: -BookingGrace, Speed: 1, Epoch: int64(now), Fails: NoRefusalYet, Parts: make([]Part, limits)}
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Parts = slices.Clone(s.Parts)
	for i := range c.Parts {
		c.Parts[i].Slots = slices.Clone(c.Parts[i].Slots)
	}
	return c
}

// Complete reports whether the state says when calls may leave. For some kinds of limits it takes
// Parts.
func (s *State) Complete(limits []Limit) bool {
	return len(s.Parts) == len(limits) || !slices.ContainsFunc(limits, func(l Limit) bool { return l.Parted() })
}

// Dial returns what the key's clock shows.
func (s *State) Dial() time.Duration { return s.At - s.Born - s.Skip }

// Advance brings the state to the store's time now. A clock that has stepped back loses the step
// and nothing else. If the step is no longer than Wobble, the next time may come forward as much,
// and must not count again: the caller passes ahead to [State.Keep] before it keeps the state.
func (s *State) Advance(limits []Limit, now time.Duration) (ahead time.Duration) {
	e := sub(now, s.At)
	s.At = now
	if e <= 0 {
		if s.Skip = add(s.Skip, e); e >= -Wobble {
			ahead = -e
		}
	} else {
		x := max(0, e-max(0, s.Rem))
		for i := 0; x < e && i < len(limits); i++ {
			s.Leaked[i] = max(0, s.Leaked[i]-limits[i].flow((e-x).Seconds()))
		}
		if s.Rem = max(-HoldMemory, sub(s.Rem, e)); s.Rem <= 0 {
			s.Leaked = Units{} // real time has caught up
		}
		x, s.Speed = dialOf(s.Speed, x)
		s.Skip += e - x
		s.leak(limits, x)
	}
	if s.Row.pass(now, s.Rem) && s.Fails > HasSucceeded {
		s.Fails = NoRefusalYet
	}
	s.look(limits, true)
	return ahead
}

func (s *State) look(limits []Limit, onward bool) {
	for i := range s.Parts {
		if l := &limits[i]; l.Kind == Leaky {
			leaky{}.look(s, l, i, onward)
		} else {
			l.law().look(s, l, i, onward)
		}
	}
}

// leak lets dial time x pass, which the dial shows already.
func (s *State) leak(limits []Limit, x time.Duration) {
	sec := x.Seconds()
	for i := range limits {
		if l := &limits[i]; l.Kind == Leaky {
			leaky{}.leak(s, l, i, sec)
		} else {
			l.law().leak(s, l, i, sec)
		}
	}
	s.Last = max(-BookingGrace, s.Last-min(x, math.MaxInt64/2))
}

// Keep moves the state to the latest time that it has seen, which is ahead of At by what Advance
// has returned. The state then stands until the store's time has caught up.
func (s *State) Keep(ahead time.Duration) {
	s.At = add(s.At, ahead)
	s.Skip = add(s.Skip, ahead)
}

// Real returns the real time in which the key's clock advances by w from now on.
func (s *State) Real(w time.Duration) time.Duration {
	return add(max(0, s.Rem), realOf(s.Speed, w))
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

// Due returns the real time from this state until the key's clock shows at and no hold is left, and
// how far it is past at already. A call may leave when in is 0.
func (s *State) Due(at time.Duration) (in, late time.Duration) {
	w := sub(at, s.Dial())
	return s.Real(max(0, w)), max(0, sub(0, w))
}

// Wait returns the time on the key's clock until a call of n could leave, after all reservations.
// It also returns the index of the limit that it would wait for, or -1 for reservations only. If
// booked is false, no call can be booked for that time: its caller must retry.
func (s *State) Wait(limits []Limit, n *Units) (w time.Duration, which int, booked bool) {
	w, which, booked = max(0, s.Last), -1, true
	for was := time.Duration(-1); w != was; {
		was = w
		for i := range limits {
			if n[i] == 0 { // the call cannot break a limit that it does not fill
				continue
			}
			if n[i] > limits[i].Capacity {
				return farthest, i, false
			}
			l, at, ok := &limits[i], w, true
			if l.Kind == Leaky {
				at, ok = leaky{}.wait(s, l, i, n[i], w)
			} else {
				at, ok = l.law().wait(s, l, i, n[i], w)
			}
			if booked = booked && ok; at > w {
				w, which = at, i
			}
		}
	}
	return w, which, booked
}

// Alone returns the real time until limit i has capacity for a call of n, if no other limit and no
// reservation makes it wait. It is below 0 if the limit never has.
func (s *State) Alone(limits []Limit, i int, n float64) time.Duration {
	l, w := &limits[i], time.Duration(0)
	if n > l.Capacity {
		return -1
	}
	if n > 0 {
		w, _ = l.law().wait(s, l, i, n, 0)
	}
	return s.Real(w)
}

// Earliest returns a lower bound of the real time until a call of n could leave, after all
// reservations and calls that take ahead in all. It also returns the limit that the call waits for,
// or -1 for reservations only. It is exact with one leaky limit. It is exact with one window, too,
// unless that counts void reservations.
func (s *State) Earliest(limits []Limit, ahead, n *Units) (real time.Duration, which int) {
	last := max(0, s.Last)
	w, which := last, -1
	for i := range limits {
		l, sum := &limits[i], ahead[i]+n[i]
		if sum <= 0 {
			continue
		}
		if at := l.law().behind(s, l, i, sum, last); at > w {
			w, which = at, i
		}
	}
	return s.Real(w), which
}

// Fill books the next reservation for a call of n, when needs are free. If that is at most so far
// away in real time, Fill writes what it has charged to c. Otherwise it changes nothing. It
// returns the real time until the reservation, or until the caller may retry, and the limit that
// the call waits for.
func (s *State) Fill(limits []Limit, n, needs *Units, most time.Duration, c *Charge) (real time.Duration, which int, ok bool) {
	w, which, ok := s.Wait(limits, needs)
	real = s.Real(w)
	if real > min(most, farthest) || !ok {
		return real, which, false
	}
	s.fill(limits, n, w, c)
	return real, which, true
}

// fill books a call of n at dial time w from now.
func (s *State) fill(limits []Limit, n *Units, w time.Duration, c *Charge) {
	dial := s.Dial()
	*c = Charge{}
	c.ID, c.Prev, c.Born, c.Epoch = s.IDs+1, s.Top, s.Born, s.Epoch
	c.Place, c.Before = dial+w, dial+s.Last
	for i := range limits {
		c.N[i] = n[i]
		switch l := &limits[i]; {
		case l.Kind != Leaky:
			l.law().fill(s, l, i, n[i], w, c)
		case w > 0:
			leaky{}.fill(s, l, i, n[i], w, c)
		default: // as most calls, without a call of a function
			s.Level[i] += n[i]
			c.Y[i] = s.Level[i] + s.Parts[i].Ret
		}
	}
	c.Free = c.freed(limits)
	s.IDs++
	s.Top, s.Last = s.IDs, max(s.Last, w)
	if s.Rem > 0 {
		s.Last = max(s.Last, time.Microsecond)
	}
	s.Row.call()
}

// Meter fills every limit by n, up to the capacity but never below what is booked, and reports
// which of them it has filled to the capacity. A level that misses the capacity by half of the
// least cost has reached it: ten fills of 0.1 fill one unit.
func (s *State) Meter(limits []Limit, n *Units) (full [Max]bool) {
	for i := range limits {
		c := limits[i].Capacity
		full[i] = n[i] > 0 && s.Level[i]+n[i] >= c*(1-0.5e-9)
		if more := min(n[i], c-s.Level[i]); more > 0 {
			limits[i].law().fill(s, &limits[i], i, more, 0, new(Charge))
			s.Top = 0
		}
	}
	return full
}

// Empty returns the real time until limit i is empty, if no call comes. It needs Parts.
func (s *State) Empty(limits []Limit, i int) time.Duration {
	dial, real := limits[i].law().empty(s, &limits[i], i)
	return max(real, s.Real(max(0, dial)))
}

// Idle reports whether a new state would behave like this one.
func (s *State) Idle(limits []Limit) bool { return s.Expire(limits) <= 0 }

// Expire returns the real time until the state is idle, if the key is unused: levels are 0, and
// reservations, holds, slow-downs and remembered refusals have ended.
func (s *State) Expire(limits []Limit) time.Duration {
	w, left := s.Last+BookingGrace, time.Duration(0)
	for i := range limits {
		dial, real := limits[i].law().empty(s, &limits[i], i)
		w, left = max(w, dial), max(left, real)
	}
	return max(left, s.Real(w), add(max(0, s.Rem), recovery(s.Speed)), add(s.Rem, HoldMemory), s.Row.left(s.At))
}
