package leak

import (
	"math"
	"time"
)

// Charge is what a fill has taken, and what it takes to give back from it, or
// to act on how its call ended.
type Charge struct {
	N      Units         // what it has cost of each limit, as far as is known
	Y      Units         // the level when the call goes, plus Ret, as its own fill left them
	Up     Units         // what the joint rule raised each limit by, beside N, when it was filled
	Place  time.Duration // dial time at which the call may go
	Before time.Duration // the place of the booking before
	Free   time.Duration // dial time at which the first limit has rid itself of N, as it was booked
	Born   time.Duration // the life of the key
	Epoch  int64         // the holds that counted when it was booked
	// Settled is set once something was given back or added.
	Settled bool
	// Lost has a bit for each limit that knows nothing of this charge,
	// because it is newer.
	Lost    uint8
	Version int64 // of the limits it was booked under
	Seq     int64 // for the store: of the request that booked it
}

func (c *Charge) lost(i int) bool { return c.Lost&(1<<i) != 0 }

// left returns what of limit i's level was there when c had been filled: its
// own fill's level, less what has run past or come back since.
func (s *State) left(limits []Limit, c *Charge, i int) float64 {
	return c.Y[i] - s.Level[i].Ret + limits[i].Rate*(c.Place-s.Dial()).Seconds()
}

// latest reports whether c is the last booking, with nothing filled, settled
// or written off since.
func (s *State) latest(limits []Limit, c *Charge) bool {
	if c.Settled || c.Lost != 0 || c.Born != s.Born || c.Place-s.Dial() != s.Last {
		return false
	}
	for i := range limits {
		// Rounding, not a cost: those are at least a billionth of the capacity.
		level, left := s.Level[i].Level, s.left(limits, c, i)
		if c.N[i] == 0 { // it still tells of a booking for the same place
			left = max(0, left)
		}
		if math.Abs(level-left) > 1e-10*max(level, limits[i].Capacity) {
			return false
		}
	}
	return true
}

// Unbook takes c back as if it had never been, if it is the last booking. It
// reports whether it was.
func (s *State) Unbook(limits []Limit, c *Charge) bool {
	if !s.latest(limits, c) {
		return false
	}
	for i := range limits {
		s.Level[i].Level = max(0, s.Level[i].Level-c.N[i]-c.Up[i])
	}
	s.Last = max(-BookingGrace, c.Before-s.Dial())
	c.N, c.Up, c.Settled = Units{}, Units{}, true
	return true
}

// Settle says that the call has really cost used. More than was charged is
// added, even above the brim. Less comes back only as far as that is safe:
// what its own fill left, less what has run past since, less what has still
// to run until the last booking goes. Of a limit that knows nothing of the call
// nothing does.
func (s *State) Settle(limits []Limit, c *Charge, used *Units) {
	if c.Settled {
		return
	}
	for i := range limits {
		over := used[i] - c.N[i]
		if over == 0 {
			continue
		}
		c.Settled, c.N[i] = true, used[i]
		l := &s.Level[i]
		switch {
		case over > 0:
			l.Level += over
		case c.Born == s.Born && !c.lost(i):
			back := s.left(limits, c, i) - limits[i].Rate*max(0, s.Last).Seconds()
			back = min(max(0, back), -over, l.Level)
			l.Level -= back
			l.Ret += back
		}
	}
}

// Since returns how many units of limit i were filled since c, those aside that are
// booked for later. What leaks of an empty limit counts as well. 0: nobody knows, as
// where a hold has written off what was there (or as much has come back).
func (s *State) Since(limits []Limit, c *Charge, i int) float64 {
	if c == nil || c.lost(i) || c.Born != s.Born || c.Y[i]-s.Level[i].Ret < -1e-8*limits[i].Capacity {
		return 0
	}
	const rounding = 1e-6
	return max(0, s.Level[i].Level-s.left(limits, c, i)-limits[i].Rate*max(0, s.Last).Seconds()) + rounding
}

// Hold lets nothing leave for d. c is the call that was told so; nil: nobody's.
// If bookings are out the clock stands, but for the time in which c's own
// units run out; else the leak runs on. Afterwards the shortest limit has room
// for one such call. A hold that ends before the one in force changes nothing.
func (s *State) Hold(limits []Limit, d time.Duration, c *Charge) {
	d = min(d, farthest)
	if d <= max(0, s.Rem) {
		return
	}
	ext := d - max(0, s.Rem)
	dial := s.Dial()
	last := s.Last
	if c != nil && s.latest(limits, c) {
		last = max(-BookingGrace, c.Before-dial)
	}
	out := last > -BookingGrace
	x := ext
	if out {
		x = min(max(0, s.free(limits, c)-dial), ext)
	}
	s.Rem = d
	s.Skip = sub(s.Skip, x)
	s.leak(limits, x)
	if len(limits) == 0 {
		return
	}
	i := Shortest(limits)
	brim := limits[i].Capacity
	if out {
		s.Last = max(s.Last, time.Microsecond)
		brim += limits[i].Rate * max(0, s.Last).Seconds()
	} else if c != nil && !c.lost(i) && c.Born == s.Born {
		brim -= c.N[i]
	} else {
		brim -= min(1, brim)
	}
	l := &s.Level[i]
	l.Level = max(l.Level, brim)
	l.Ret += l.Level // what was there before does not come back to it
}

// Follow brings a charge to new limits, as [State.Change] brings the state.
func (c *Charge) Follow(old, limits []Limit, from []int) {
	was := *c
	c.N, c.Y, c.Up, c.Lost = Units{}, Units{}, Units{}, 0
	// A limit that is no longer there might have told of a booking beside c.
	c.Before = c.Place
	for i := range limits {
		j := from[i]
		if j >= 0 {
			c.N[i], c.Up[i] = was.N[j], was.Up[j]
		}
		if j >= 0 && !was.lost(j) {
			// Y counts from the place on, at the limit's rate until then.
			c.Y[i] = was.Y[j] + (old[j].Rate-limits[i].Rate)*c.Place.Seconds()
		} else {
			c.Lost |= 1 << i
		}
	}
}

// free returns the dial time at which the first limit has rid itself of c: as it was
// booked, or as it stands today, whichever is sooner. With more than was booked, or at
// a rate that was lowered since, the dial would run through a hold past the places of
// those who are booked behind it, and they would leave together.
func (s *State) free(limits []Limit, c *Charge) time.Duration {
	if c == nil || c.Born != s.Born {
		return s.Dial()
	}
	return min(c.Free, c.Freed(limits))
}

// Freed returns the dial time at which the first of limits has rid itself of N.
func (c *Charge) Freed(limits []Limit) time.Duration {
	w := time.Duration(math.MaxInt64)
	for i := range limits {
		w = min(w, lasts(c.N[i], limits[i].Rate))
	}
	return add(c.Place, w)
}

// Refused says that the API has refused c, a call that knew of epoch when it
// left, and asked to wait d (0: it did not say). A refusal that is news begins
// an episode: the clock slows if a call had succeeded since the last hold, unless
// slowing down has been found not to help, and else the hold was too short and is at
// least doubled, up to most (0, or more than that: MaxBack). One that is not only
// extends the hold. Where slowing down does not help and the API has not asked to wait,
// only a second refusal with no success between holds.
func (s *State) Refused(limits []Limit, epoch int64, d, most time.Duration, c *Charge) {
	if epoch == s.Epoch || s.Row.Top > 0 {
		s.Row.refused(s.At, s.Speed)
	}
	if epoch == s.Epoch {
		s.Epoch++
		switch s.Fails {
		case NoRefusalYet:
			s.Fails = 0
		case HasSucceeded:
			s.Fails = 0
			s.Speed = s.Row.steer(s.Speed, s.Rem > -HoldMemory)
			if s.Row.Trust > 0 && d == 0 {
				return
			}
		default:
			s.Fails++
		}
		back := MaxBack
		if most > 0 {
			back = min(back, most)
		}
		if s.Fails < 12 {
			back = min(back, time.Second<<s.Fails)
		}
		if s.Fails > 0 || d == 0 {
			d = max(d, back)
		}
	}
	s.Hold(limits, d, c)
}

// Succeeded says that a call which knew of epoch has succeeded.
func (s *State) Succeeded(epoch int64) {
	if epoch == s.Epoch {
		s.Fails = HasSucceeded
	}
}

// Shortest returns the index of the limit that drains in the shortest time.
func Shortest(limits []Limit) int {
	least := 0
	for i := range limits {
		if limits[i].Capacity*limits[least].Rate < limits[least].Capacity*limits[i].Rate {
			least = i
		}
	}
	return least
}
