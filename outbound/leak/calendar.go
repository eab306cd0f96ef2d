package leak

import "time"

// Slack is by how much the clocks of the worker, of the store and of the API may differ, and
// how long a call may travel, around the end of a calendar period. A call that goes within
// Slack of the end counts in both periods, and the next period begins that much late.
const Slack = time.Second

// longestPeriod is longer than any period.
const longestPeriod = 32 * 24 * time.Hour

// Period is where a moment is in a limit's calendar, as Unix times in seconds. The worker
// computes it in the limit's zone, because a store knows none.
type Period struct {
	Begin, End int64 // of the period that the moment is in
	Next       int64 // the end of the next period
	After      int64 // and of the one after it
}

// holds reports whether a period that ends then is over Slack after it: that is when the law
// goes on to the next.
func (p *Period) holds(unix time.Duration) bool {
	return unix >= ends(p.Begin) && unix < ends(p.End)
}

// next returns the period that follows; its After is not known.
func (p *Period) next() Period { return Period{p.End, p.Next, p.After, 0} }

// sound reports whether its times are in order.
func (p *Period) sound() bool {
	const most = 9e9 // seconds: the year 2255
	return p.Begin > -most && p.Begin < p.End && p.End < p.Next && p.Next < p.After && p.After < most
}

// ends returns the Unix time at which the law goes on to the period after an end.
func ends(end int64) time.Duration { return time.Duration(end)*time.Second + Slack }

// Calendar is what a key keeps of a limit that counts by the calendar.
type Calendar struct {
	Begin     int64   // of this period, in Unix seconds
	End, Next int64   // the ends of this period and of the next
	This      float64 // units of this period
	Coming    float64 // units of the next period
	// Least is what This is at least, once the next step tells the period: so much is in a limit
	// of another kind.
	Least float64 `json:",omitzero"`
	// Garbage says that This is not what calls have taken: nobody knows what they have.
	Garbage bool `json:",omitempty"`
	// Off is by how much the store's Unix time is ahead of State.At; 0 where that is it.
	Off time.Duration
}

// steady returns the Unix time by which the calendar finds its period. Two clocks that differ from
// the API's by at most Slack differ by twice that from each other: a time that is no further before
// the period than that is of a clock that has stepped back, or of another server's, and the period
// stays.
func (c *Calendar) steady(unix time.Duration) time.Duration {
	if begins := ends(c.Begin); c.End != 0 && unix < begins && unix >= begins-2*Slack {
		return begins
	}
	return unix
}

// roll brings the calendar to a period that the time is in. It reports whether that is another one.
func (c *Calendar) roll(p *Period, off time.Duration) (begun bool) {
	c.Off = off
	if c.End == p.End {
		c.Begin, c.Next, c.This, c.Least = p.Begin, p.Next, max(c.This, c.Least), 0
		return false
	}
	was := *c
	*c = Calendar{Begin: p.Begin, End: p.End, Next: p.Next, Off: off}
	switch {
	case was.End == 0: // it has units, but of no period yet
		c.This, c.Garbage = was.This, was.Garbage
	case was.End == p.Begin:
		c.This = was.Coming
	case was.End > p.Begin: // the zone is another one, or the clock was set back: lose nothing
		c.This, c.Garbage = was.This+was.Coming, was.Garbage
		if was.Begin >= p.End {
			c.Coming = was.This
		}
	case was.Next > p.Begin:
		c.This = was.Coming
	}
	c.This = max(c.This, was.Least)
	return true
}

// wait returns the first Unix time from t on at which n units have room, and whether that
// can be booked: bookings go no further than the next period.
func (c *Calendar) wait(l *Limit, n float64, t time.Duration) (at time.Duration, ok bool) {
	end, next := ends(c.End), ends(c.Next)
	if t < end {
		if l.fits(c.This+n) && (t < end-2*Slack || l.fits(c.Coming+n)) {
			return t, true
		}
		t = end
	}
	if t < next-2*Slack && l.fits(c.Coming+n) {
		return t, true
	}
	return max(t, next), false
}

// fill takes n units at a Unix time that wait has returned, and returns the end of the
// period that they are of; below 0: they are of the one after it as well.
func (c *Calendar) fill(n float64, t time.Duration) (of float64) {
	switch end := ends(c.End); {
	case t >= end:
		c.Coming += n
		return float64(c.Next)
	case t >= end-2*Slack:
		c.This, c.Coming = c.This+n, c.Coming+n
		return -float64(c.End)
	}
	c.This += n
	return float64(c.End)
}

// settle adds more units to the periods that a call is of, or takes some back.
func (c *Calendar) settle(of, more float64) {
	end, both := int64(of), of < 0
	if both {
		end = -end
	}
	if end == c.End || both && end == c.Begin {
		c.This = max(0, c.This+more)
	}
	if end == c.Next || both && end == c.End {
		c.Coming = max(0, c.Coming+more)
	}
}

// level returns the units of this period, and how long it is until they go: until its end. at
// is State.At.
func (c *Calendar) level(at time.Duration) (units float64, next, empty time.Duration) {
	unix := add(at, c.Off)
	this, coming, end := c.This, c.Coming, ends(c.End)
	switch {
	case c.End == 0:
	case unix >= ends(c.Next):
		this, coming = 0, 0
	case unix >= end:
		this, coming, end = coming, 0, ends(c.Next)
	}
	left := sub(end, unix)
	if c.End == 0 || c.Least > this { // of which period the units are is known with the next step
		this, left = max(this, c.Least), longestPeriod
	}
	if this > 0 {
		next, empty = left, left
	}
	if coming > 0 {
		empty = sub(ends(c.Next), unix)
	}
	return this, next, empty
}

// void takes out what is booked for later than a Unix time, as far as that is only the next
// period's.
func (c *Calendar) void(unix time.Duration) {
	if unix < ends(c.End)-2*Slack {
		c.Coming = 0
	}
}

// resume takes out the bookings of the next period, and opens one of which nobody knows what
// calls have taken. Else a Resume changes nothing: the API goes on counting.
func (c *Calendar) resume(unix time.Duration) {
	c.void(unix)
	if c.Garbage {
		c.This, c.Garbage = 0, false
	}
}

// Moved reports whether a call that was booked for the period that of says, as Charge.Up
// has it, would count in another one if it went at that Unix time: a hold or a slow-down has
// moved its place. It is given back then, and booked anew.
func Moved(of float64, unix time.Duration) bool {
	end := int64(of)
	if end < 0 {
		return unix >= ends(-end)
	}
	return unix >= ends(end)-2*Slack
}
