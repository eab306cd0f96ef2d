package leak

import (
	"math"
	"time"
)

// Charge is what a fill has taken of the limits, with all that a store needs to give it back
// or to act on the API's answer to the call. The worker that booked the call keeps it; the
// key does not.
type Charge struct {
	N      Units         // what the call has cost of each limit, as far as its worker knows
	Y      Units         // the level at the call's place, plus Ret, as its own fill left them
	Up     Units         // by how much the joint rule raised each limit, beside N
	Place  time.Duration // dial time at which the call may go
	Before time.Duration // the place of the booking before
	Free   time.Duration // dial time at which N, as it was booked, has run out of the first limit
	Born   time.Duration // the life of the key
	Epoch  int64         // the key's, when the call was booked
	// Settled is set once units were given back or added.
	Settled bool
	// Lost has a bit for each limit that is newer than this charge, and knows nothing of it.
	Lost    uint8
	Version int64 // of the limits under which the call was booked
	Seq     int64 // the store's number of the request that booked it
}

func (c *Charge) lost(i int) bool { return c.Lost&(1<<i) != 0 }

// left returns how much of the level that c's own fill left in limit i is still there: less
// what has run past since, and less what has come back.
func (s *State) left(limits []Limit, c *Charge, i int) float64 {
	return c.Y[i] - s.Level[i].Ret + limits[i].Rate*(c.Place-s.Dial()).Seconds()
}

// latest reports whether c is the last booking, and nobody has filled, settled or written
// off anything since.
func (s *State) latest(limits []Limit, c *Charge) bool {
	if c.Settled || c.Lost != 0 || c.Born != s.Born || c.Place-s.Dial() != s.Last {
		return false
	}
	for i := range limits {
		if limits[i].Kind != Leaky {
			if total := s.log(&limits[i]).Total; math.Abs(total-c.Y[i]) > rounding*max(total, limits[i].Capacity) {
				return false
			}
			continue
		}
		// A smaller difference is rounding: a cost is at least a billionth of the capacity.
		level, left := s.Level[i].Level, s.left(limits, c, i)
		if c.N[i] == 0 { // this limit may still tell of another booking for the same place
			left = max(0, left)
		}
		if math.Abs(level-left) > 1e-10*max(level, limits[i].Capacity) {
			return false
		}
	}
	return true
}

// Unbook undoes c as if it had never been, if it is the last booking. It reports whether it
// was.
func (s *State) Unbook(limits []Limit, c *Charge) bool {
	if !s.latest(limits, c) {
		return false
	}
	for i := range limits {
		switch l := &limits[i]; {
		case l.Kind == Leaky:
			s.Level[i].Level = max(0, s.Level[i].Level-c.N[i]-c.Up[i])
		case c.N[i] == 0:
		case l.Kind.Calendar():
			g := s.log(l)
			g.Total -= c.N[i]
			g.Calendar.settle(c.Up[i], -c.N[i])
		default:
			s.log(l).undo(l, c.Place, c.Before, c.N[i])
		}
	}
	s.Last = max(-BookingGrace, c.Before-s.Dial())
	c.N, c.Up, c.Settled = Units{}, Units{}, true
	s.look(limits)
	return true
}

// Settle says that the call has really cost used. It adds the units beyond the charge, even
// above the brim. Of units that the call did not use it gives back only what is safe: what is
// left of the call's own fill, less what must still run until the last booking goes. A limit
// that knows nothing of the call gives nothing back. Only the first Settle of a charge counts.
func (s *State) Settle(limits []Limit, c *Charge, used *Units) {
	if c.Settled {
		return
	}
	for i := range limits {
		over := used[i] - c.N[i]
		if over == 0 {
			continue
		}
		n := c.N[i]
		c.Settled, c.N[i] = true, used[i]
		l := &s.Level[i]
		known := c.Born == s.Born && !c.lost(i)
		switch {
		case limits[i].Kind != Leaky:
			if known {
				s.settleLog(&limits[i], c.Place, c.Up[i], n, used[i], *used != Units{})
			} else if over > 0 {
				s.settleLog(&limits[i], s.Dial(), 0, n, used[i], true)
			}
		case over > 0:
			l.Level += over
		case known:
			back := s.left(limits, c, i) - limits[i].Rate*max(0, s.Last).Seconds()
			back = min(max(0, back), -over, l.Level)
			l.Level -= back
			l.Ret += back
		}
	}
	s.look(limits)
}

// Since returns how many units of limit i calls have taken since c and gone; units that are
// booked for later do not count. What an empty limit has leaked counts as well, so the true
// number may be smaller. 0 where nobody knows: c is of another life, or the limit does not
// know it, or a hold has written off what was there.
func (s *State) Since(limits []Limit, c *Charge, i int) float64 {
	if c == nil || c.lost(i) || c.Born != s.Born || limits[i].Kind == Leaky && c.Y[i]-s.Level[i].Ret < -1e-8*limits[i].Capacity {
		return 0
	}
	const least = 1e-6
	if limits[i].Kind != Leaky {
		g := s.log(&limits[i])
		return max(0, g.Total-c.Y[i]-g.booked(s.Dial())) + least
	}
	return max(0, s.Level[i].Level-s.left(limits, c, i)-limits[i].Rate*max(0, s.Last).Seconds()) + least
}

// Hold lets no call leave for d from now on. c is the call that the API has answered so; nil:
// there is none. If bookings are out, the clock stands, except for the time in which c's own
// units run out. If none are, the leak runs on. After the hold the limit that drains in the
// shortest time has room for one such call. A hold that ends before the one in force changes
// nothing.
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
	x, known := ext, true
	if out {
		var until time.Duration
		if until, known = s.next(limits); known {
			x, _ = dialOf(s.Speed, ext) // or a slow clock would get to booked places sooner than it was to
		} else {
			until = s.free(limits, c)
		}
		x = min(max(0, sub(until, dial)), x)
	}
	s.Rem = d
	s.Skip = sub(s.Skip, x)
	if !known {
		s.passed(limits)
	}
	s.leak(limits, x)
	s.age(limits, ext-x)
	s.look(limits)
	i := Shortest(limits)
	if i < 0 {
		return
	}
	brim := limits[i].Capacity
	if out {
		s.Last = max(s.Last, time.Microsecond)
		if limits[i].Kind == Leaky {
			brim += limits[i].Rate * max(0, s.Last).Seconds()
		}
	} else if c != nil && !c.lost(i) && c.Born == s.Born {
		brim -= c.N[i]
	} else {
		brim -= min(1, brim)
	}
	if limits[i].Kind != Leaky {
		s.log(&limits[i]).drip(&limits[i], brim, s.Dial()+max(0, s.Last))
		s.look(limits)
		return
	}
	l := &s.Level[i]
	l.Level = max(l.Level, brim)
	l.Ret += l.Level // no call from before gives anything back to it
}

// settleLog makes n units of a call into used, in a limit that is no leaky one. of is the
// calendar's period; 0: this one.
func (s *State) settleLog(l *Limit, place time.Duration, of, n, used float64, goes bool) {
	g := s.log(l)
	if !l.Kind.Calendar() {
		g.settle(l, place, n, used, goes, s.Dial())
		return
	}
	if of == 0 {
		of = float64(g.Calendar.End)
	}
	g.Calendar.settle(of, used-n)
}

// Follow brings a charge to new limits, as [State.Change] brings the state to them.
func (c *Charge) Follow(old, limits []Limit, from []int) {
	was := *c
	c.N, c.Y, c.Up, c.Lost = Units{}, Units{}, Units{}, 0
	// A limit that has gone might have told of a booking beside c.
	c.Before = c.Place
	for i := range limits {
		j := from[i]
		if j >= 0 {
			c.N[i], c.Up[i] = was.N[j], was.Up[j]
		}
		if j >= 0 && (old[j].Kind != Leaky || limits[i].Kind != Leaky) {
			if c.Y[i] = was.Y[j]; was.lost(j) || old[j].Kind != limits[i].Kind || old[j].Zone != limits[i].Zone {
				c.Lost |= 1 << i
			}
		} else if j >= 0 && !was.lost(j) {
			// Y counts on the limit's rate until the place.
			c.Y[i] = was.Y[j] + (old[j].Rate-limits[i].Rate)*c.Place.Seconds()
		} else {
			c.Lost |= 1 << i
		}
	}
}

// free returns the dial time at which c's units have run out of the first limit: as c was
// booked, or as it stands today, whichever is sooner. If c has cost more than was booked, or
// the rate was lowered, today's time is later. In a hold the dial would run up to it, past the
// places of the calls behind c, and those would leave together.
func (s *State) free(limits []Limit, c *Charge) time.Duration {
	if c == nil || c.Born != s.Born {
		return s.Dial()
	}
	return min(c.Free, c.Freed(limits))
}

// Freed returns the dial time at which N has run out of the first of limits.
func (c *Charge) Freed(limits []Limit) time.Duration {
	w := time.Duration(math.MaxInt64)
	for i := range limits {
		if !limits[i].Kind.Calendar() {
			w = min(w, lasts(c.N[i], limits[i].Rate))
		}
	}
	return add(c.Place, w)
}

// Refused says that the API has refused c, a call that knew of epoch when it left, and has
// asked to wait d; 0: it did not say. A call that knew of an older epoch belongs to an episode
// that is known: its refusal only extends the hold. Another begins a new episode. If a call
// had succeeded since the last hold, the clock slows down, unless slowing down was found not
// to help; then the key is held only if the API has asked to wait. If none had succeeded, the
// last hold was too short, and this one is at least twice as long, up to most; 0, or more than
// MaxBack: up to MaxBack.
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

// Succeeded says that a call which knew of epoch has succeeded. Only the newest epoch counts.
func (s *State) Succeeded(epoch int64) {
	if epoch == s.Epoch {
		s.Fails = HasSucceeded
	}
}

// Shortest returns the index of the limit that drains in the shortest time, calendars aside;
// -1: there is none.
func Shortest(limits []Limit) int {
	least := -1
	for i := range limits {
		if limits[i].Kind.Calendar() {
			continue
		}
		if least < 0 || limits[i].Capacity*limits[least].Rate < limits[least].Capacity*limits[i].Rate {
			least = i
		}
	}
	return least
}
