package outboundtest

import (
	"fmt"
	"time"
)

// Period is a part of the calendar that CalendarWindow and History.CheckCalendar count by.
type Period int

// The periods. Each has the length of its zone's clocks: a day lasts 23 or 25 hours when they are
// set, and begins later if there is no midnight.
const (
	Hour  Period = iota + 1 // until the clock shows the next full hour, or is set
	Day                     // until the clock shows the next date
	Month                   // until the clock shows the next month
	Week                    // until the clock shows the next Monday
)

var periods = [...]string{Hour: "hour", Day: "day", Month: "month", Week: "week"}

// String returns the period's name in lower case: "day".
func (p Period) String() string {
	if p < Hour || p > Week {
		return fmt.Sprintf("period %d", int(p))
	}
	return periods[p]
}

// CalendarWindow admits up to n units in each hour, day, week or month of the zone's calendar. Up
// to 2n units may follow each other closely where two periods meet. The API goes by its own clock,
// which [API.Skew] sets: with one second it begins a period a second early. n must be above 0 and
// finite, the period one of the four, and the zone not nil; otherwise it panics.
func CalendarWindow(n float64, period Period, zone *time.Location) Rule {
	needPositive("limit of a period", n)
	needPeriod(period, zone)
	return newRule(n, 0, fmt.Sprintf("in each %v of %v", period, zone), func() state {
		return &calendarWindow{limit: n + n*sharp, period: period, zone: zone}
	})
}

func needPeriod(p Period, zone *time.Location) {
	need(p >= Hour && p <= Week, "%v: must be Hour, Day, Month or Week", p)
	need(zone != nil, "a %v in no zone: give one, such as time.UTC", p)
}

// around returns the period of a moment, which ends before its end.
func (p Period) around(t time.Time, zone *time.Location) (begin, end time.Time) {
	local := t.In(zone)
	if p == Hour {
		return hourAround(local)
	}
	year, month, day := local.Date()
	for {
		civil, next := time.Date(year, month, day, 0, 0, 0, 0, time.UTC), time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
		switch p {
		case Week:
			civil = civil.AddDate(0, 0, -(int(civil.Weekday())+6)%7)
			next = civil.AddDate(0, 0, 7)
		case Month:
			civil, next = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC), time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
		}
		if begin, end = turn(civil, zone), turn(next, zone); t.Before(end) {
			return begin, end
		}
		// The clock was set back over midnight: the date comes again, and its period is over.
		year, month, day = next.Date()
	}
}

func hourAround(local time.Time) (begin, end time.Time) {
	into := time.Duration(local.Minute())*time.Minute + time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	begin = local.Add(-into)
	end = begin.Add(time.Hour)
	from, to := local.ZoneBounds()
	if begin.Before(from) {
		begin = from
	}
	if !to.IsZero() && to.Before(end) {
		end = to
	}
	return begin, end
}

// turn returns the first moment when the zone's clocks show a civil time or a later one. The civil
// time is given as if in UTC. The clocks may skip it, or show it twice.
func turn(civil time.Time, zone *time.Location) time.Time {
	at := civil.Add(-36 * time.Hour).In(zone) // no zone shows it so early
	for {
		_, offset := at.Zone()
		from, to := at.ZoneBounds()
		shown := civil.Add(-time.Duration(offset) * time.Second)
		switch {
		case !to.IsZero() && !shown.Before(to):
			at = to
		case shown.Before(from):
			return from
		default:
			return shown
		}
	}
}

type calendarWindow struct {
	limit      float64
	period     Period
	zone       *time.Location
	begin, end int64 // of the period that used is of
	used       float64
}

// roll goes on to the period that now is in.
func (c *calendarWindow) roll(now int64) {
	if now >= c.begin && now < c.end {
		return
	}
	begin, end := c.period.around(time.Unix(0, now), c.zone)
	c.begin, c.end, c.used = begin.UnixNano(), end.UnixNano(), 0
}

func (c *calendarWindow) wait(now int64, _ int, units float64) time.Duration {
	c.roll(now)
	switch {
	case units > c.limit:
		return unknown
	case c.used+units > c.limit:
		return time.Duration(c.end - now)
	}
	return 0
}

func (c *calendarWindow) take(now int64, units float64) {
	c.roll(now)
	c.used += units
}

func (c *calendarWindow) count(now int64, _ int) (float64, time.Duration) {
	c.roll(now)
	return c.used, time.Duration(c.end - now)
}

func (c *calendarWindow) length() time.Duration { return time.Duration(c.end - c.begin) }

// adopt takes over a count of the same period: a day of one zone is none of another.
func (c *calendarWindow) adopt(old state, now int64) bool {
	o, ok := old.(*calendarWindow)
	if !ok {
		return false
	}
	was := *o
	was.roll(now)
	c.roll(now)
	if was.begin != c.begin || was.end != c.end {
		return false
	}
	c.used = was.used
	return true
}
