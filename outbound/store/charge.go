package store

import (
	"cmp"
	"math"
	"time"
)

// Charge is what a booking has taken of the limits, with all that is needed to return it or to act
// on the API's answer to the call. The process that booked the call keeps it; the key does not.
type Charge struct {
	ID, Prev int64         // the number of the booking, and of the one before that could be undone
	N        Units         // what the call has cost of each limit, as far as is known
	Y        Units         // leaky: the level at the reservation, plus Ret. Others: what was filled so far
	Up       Units         // by how much the joint rule raised a leaky limit, in addition to N
	Place    time.Duration // when the call may leave, on the key's clock
	Before   time.Duration // the reservation before
	Free     time.Duration // when N, as it was booked, has leaked from the first limit, on the key's clock
	Until    time.Duration // Unix time of the call's latest departure, or 0
	Born     time.Duration // the life of the key
	Epoch    int64         // the key's, when the call was booked
	Number   int64         // of the limits by which the call was booked
	Settled  bool          // units were returned or added
}

// Void reports whether a hold or a slow-down has moved a reservation out of the calendar period
// that it was charged to, at a Unix time. Its caller returns it and books again.
func (c *Charge) Void(unix time.Duration) bool { return c.Until != 0 && unix >= c.Until }

// latest reports whether c is the last booking, and nothing has happened since that forbids to undo
// it. Its reservation is the last one, except for the rounding of a slow clock in a store that does
// not compute with this package.
func (s *State) latest(c *Charge) bool {
	d := c.Place - s.Dial() - s.Last
	return !c.Settled && c.ID == s.Top && c.Born == s.Born && d >= -2 && d <= 2
}

// Undo takes c back as if it had never been, if it is the last booking. It reports whether it was.
func (s *State) Undo(limits []Limit, c *Charge) bool {
	if !s.latest(c) {
		return false
	}
	for i := range limits {
		limits[i].law().undo(s, &limits[i], i, c)
	}
	s.Top, s.Last = c.Prev, max(-BookingGrace, c.Before-s.Dial())
	c.N, c.Up, c.Settled = Units{}, Units{}, true
	return true
}

// Settle says that the call has cost used. It adds the units beyond the charge, even above the
// capacity. It returns unused units only as far as that is safe. Only the first Settle of a charge
// counts.
func (s *State) Settle(limits []Limit, c *Charge, used *Units) {
	if c.Settled {
		return
	}
	for i := range limits {
		more := used[i] - c.N[i]
		if more == 0 {
			continue
		}
		c.Settled = true
		limits[i].law().settle(s, &limits[i], i, c, more, s.knows(c, i))
		if c.N[i] = used[i]; more > 0 {
			s.Top = 0
		}
	}
}

// has reports whether a charge was booked in this life of the key. A key whose store has lost its
// latest bookings has not given their numbers yet.
func (s *State) has(c *Charge) bool { return c.Born == s.Born && c.ID <= s.IDs }

// knows reports whether limit i can prove what is left of a charge.
func (s *State) knows(c *Charge, i int) bool { return s.has(c) && c.Number >= s.Parts[i].Since }

// Since returns how many units of limit i calls have taken since c and have left; units that are
// reserved for later do not count. What an empty limit has leaked counts as well, so the true
// number may be smaller. It is 0 where it is unknown.
func (s *State) Since(limits []Limit, c *Charge, i int) float64 {
	if c == nil || !s.knows(c, i) {
		return 0
	}
	return limits[i].law().since(s, &limits[i], i, c)
}

// Hold lets no call leave for d from now on. c is the call that the API has answered so, or nil. If
// reservations are out, the clock stands, except for the time in which c's own units leak. If none
// are, the leak runs on. After the hold the limit that drains in the shortest time has capacity for
// one such call, if drips is true. A hold that ends before the one in force changes nothing.
func (s *State) Hold(limits []Limit, d time.Duration, c *Charge, drips bool) {
	d = min(d, farthest)
	if d <= max(0, s.Rem) {
		return
	}
	ext, dial, last := d-max(0, s.Rem), s.Dial(), s.Last
	if c != nil && s.latest(c) {
		last = max(-BookingGrace, c.Before-dial)
	}
	out := last > -BookingGrace
	x := ext
	if out {
		x = 0
		if c != nil && s.has(c) {
			x = min(max(0, sub(c.FreeBy(limits), dial)), ext)
		}
	}
	s.Rem = d
	s.ahead(limits, x)
	s.Top = 0
	if out {
		s.Last = max(s.Last, time.Microsecond)
	}
	short := -1
	if drips {
		short = shortest(limits)
	}
	for i := range limits {
		room := -1.
		switch {
		case i != short:
		case out:
			room = 0
		case c != nil && s.knows(c, i):
			room = c.N[i]
		default:
			room = min(1, limits[i].Capacity)
		}
		limits[i].law().hold(s, &limits[i], i, dial, ext-x, room)
	}
	s.look(limits, false)
}

// Pause lets no call leave for d from now on. The key's clock runs on, ahead of real time, to what
// it shows at the end. So a reservation in the pause is late then, and its caller returns it.
func (s *State) Pause(limits []Limit, d time.Duration) {
	d = min(d, farthest)
	if x := d - max(0, s.Rem); x > 0 {
		s.Rem = d
		x, s.Speed = dialOf(s.Speed, x)
		s.ahead(limits, x)
		s.look(limits, false)
	}
}

// ahead lets dial time x pass ahead of real time, in a hold.
func (s *State) ahead(limits []Limit, x time.Duration) {
	levels := s.Level
	s.Skip = sub(s.Skip, x)
	s.leak(limits, x)
	for i := range limits {
		s.Leaked[i] += levels[i] - s.Level[i]
	}
}

// FreeBy returns when c's units have leaked from the first limit, on the key's clock: as c was
// booked, or as it stands today, whichever is sooner. If c has cost more than was booked, or the
// rate was lowered, today's time is later. In a hold that clock would run up to it, past the
// reservations behind c, and those calls would leave together.
func (c *Charge) FreeBy(limits []Limit) time.Duration { return min(c.Free, c.freed(limits)) }

// freed returns the dial time at which N has leaked from the first of limits.
func (c *Charge) freed(limits []Limit) time.Duration {
	sec := math.Inf(1)
	for i := range limits {
		l, s := &limits[i], 0.
		if l.Kind == Leaky {
			s = leaky{}.freed(l, c.N[i])
		} else {
			s = l.law().freed(l, c.N[i])
		}
		if s < sec { // min would take longer
			sec = s
		}
	}
	return add(c.Place, lasting(sec))
}

// shortest returns the index of the limit that drains in the shortest time, calendars aside; -1 if
// there is none.
func shortest(limits []Limit) int {
	least := -1
	for i := range limits {
		if limits[i].Rate > 0 && (least < 0 || limits[i].Capacity*limits[least].Rate < limits[least].Capacity*limits[i].Rate) {
			least = i
		}
	}
	return least
}

// Refused reports that the API has refused c, and has asked to wait d, or 0. With an epoch older
// than the key's, the refusal belongs to a series that the key knows, and only extends the hold.
// Otherwise it begins a new series. If a call had succeeded since the
// last hold, the clock slows down, unless that was found not to help. Then the key is held only if
// the API has asked to wait. If none had succeeded, the last hold was too short, and this one is at
// least twice as long, up to most; 0, or more than MaxBackoff: up to MaxBackoff.
func (s *State) Refused(limits []Limit, epoch int64, d, most time.Duration, c *Charge) {
	if epoch == s.Epoch || s.Row.Top > 0 {
		s.Row.refused(s.At, s.Speed)
	}
	if epoch == s.Epoch {
		s.Epoch++
		succeeded := s.Fails == HasSucceeded
		if s.Fails = max(0, s.Fails+1); succeeded {
			s.Speed = s.Row.steer(s.Speed, s.Rem > -HoldMemory)
			if s.Row.Trust > 0 && d == 0 {
				return
			}
		}
		if s.Fails > 0 || d == 0 {
			d = max(d, min(MaxBackoff, cmp.Or(most, MaxBackoff), time.Second<<min(s.Fails, 12)))
		}
	}
	s.Hold(limits, d, c, true)
	s.Row.remember(s.At, s.Rem)
}

// Succeeded reports a call that has succeeded. It has no effect with an epoch older than the key's.
func (s *State) Succeeded(epoch int64) {
	if epoch == s.Epoch {
		s.Fails = HasSucceeded
	}
}
