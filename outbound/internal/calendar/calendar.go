// Package calendar finds the periods of a calendar in a time zone.
package calendar

import (
	"fmt"
	"math"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// zones has the time zones that were loaded, as *time.Location by name. To load one takes
// longer than all else that a limit needs.
var zones sync.Map

// Zone returns the time zone of a name, or what is wrong with the name.
func Zone(name string) (zone *time.Location, flaw string) {
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), ""
	}
	switch {
	case name == "Local":
		return nil, `time.Local is another zone on each machine: name the zone, as time.LoadLocation("Europe/Berlin") does`
	case name == "" || len(name) > 64 || path.Clean(name) != name: // each spelling would be kept
		return nil, fmt.Sprintf(`%.64q is no name of a time zone such as "UTC" or "Europe/Berlin"`, name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Sprintf("the time zone %q cannot be loaded (%v): a program brings zone data along with import _ \"time/tzdata\"", name, err)
	}
	zones.Store(name, zone)
	return zone, ""
}

// Name returns a zone's name for other processes, or what is wrong with it.
func Name(zone *time.Location) (name, flaw string) {
	if zone == nil {
		return "", "its location is nil: time.UTC is one"
	}
	name = zone.String()
	loaded, flaw := Zone(name)
	if flaw != "" {
		return "", flaw
	}
	// A zone that was made by hand may bear another one's name.
	for year := 2000; year < 2038; year++ {
		for _, month := range [...]time.Month{time.January, time.July} {
			t := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
			_, here := t.In(zone).Zone()
			if _, there := t.In(loaded).Zone(); here != there {
				return "", fmt.Sprintf("the location %q is not the one that time.LoadLocation returns for its name, by which other processes know it", name)
			}
		}
	}
	return name, ""
}

// Calendar finds the periods of a bucket's limits at a time.
type Calendar struct {
	kinds []store.Kind
	zones []*time.Location // nil if the limit does not count by the calendar, or counts by UTC's hours
	last  atomic.Pointer[span]
}

// span is a part of a calendar, in Unix seconds. It never changes.
type span struct {
	from, until int64
	periods     []store.Period
}

// New returns the calendar of limits whose zones load, or nil without a calendar quota.
func New(limits []store.Limit) *Calendar {
	if !slices.ContainsFunc(limits, func(l store.Limit) bool { return l.Kind.Calendar() }) {
		return nil
	}
	c := &Calendar{kinds: make([]store.Kind, len(limits)), zones: make([]*time.Location, len(limits))}
	for i := range limits {
		if c.kinds[i] = limits[i].Kind; c.kinds[i] > store.Hourly {
			c.zones[i], _ = Zone(limits[i].Zone)
		}
	}
	return c
}

// At returns the periods at a Unix time, one for each limit, or nil if no limit counts by the
// calendar. They never change.
func (c *Calendar) At(unix time.Duration) []store.Period {
	if c == nil {
		return nil
	}
	sec := int64(unix / time.Second)
	if unix%time.Second < 0 {
		sec--
	}
	m := c.last.Load()
	if m == nil || sec < m.from || sec >= m.until {
		m = c.span(sec)
		c.last.Store(m)
	}
	return m.periods
}

// span computes the calendar at a Unix time.
func (c *Calendar) span(sec int64) *span {
	m := &span{from: math.MinInt64, until: math.MaxInt64, periods: make([]store.Period, len(c.kinds))}
	for i, kind := range c.kinds {
		if !kind.Calendar() {
			continue
		}
		p := period(kind, c.zones[i], sec)
		m.periods[i] = p
		m.from, m.until = max(m.from, p.Begin), min(m.until, p.End)
	}
	return m
}

// period returns the period of a kind that a Unix time is in. The periods follow each other
// without a gap, whatever the zone's clocks do.
func period(kind store.Kind, zone *time.Location, sec int64) store.Period {
	if kind == store.Hourly {
		begin := sec - (sec%3600+3600)%3600
		return store.Period{Begin: begin, End: begin + 3600, Next: begin + 7200}
	}
	year, month, day := time.Unix(sec, 0).In(zone).Date()
	begins := func(i int) int64 {
		if kind == store.Monthly {
			return dayBegins(zone, year, month+time.Month(i), 1)
		}
		return dayBegins(zone, year, month, day+i)
	}
	i, times := 0, [3]int64{}
	for begins(i+1) <= sec { // clocks that go back over midnight show the day before once more
		i++
	}
	times[0] = begins(i)
	for k := 1; k < len(times); k++ {
		for times[k] = times[k-1]; times[k] <= times[k-1]; { // a zone may have left a day out
			i++
			times[k] = begins(i)
		}
	}
	return store.Period{Begin: times[0], End: times[1], Next: times[2]}
}

// dayBegins returns the Unix time when clocks of the zone first show midnight of a day, or a later
// time of it. A midnight may be left out, or come twice. Days beyond a month's end are those of the
// next.
func dayBegins(zone *time.Location, year int, month time.Month, day int) int64 {
	const farEast = 16 * 3600 // no clock is further ahead of UTC
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix()
	for t := time.Unix(midnight-farEast, 0).In(zone); ; {
		_, offset := t.Zone()
		_, until := t.ZoneBounds()
		at := max(t.Unix(), midnight-int64(offset))
		if until.IsZero() || at < until.Unix() {
			return at
		}
		t = until
	}
}

// Stamp returns a time as Unix time. Calendars end in 2112: for them a clock that is set to a
// later time, or to one before 1827, stands.
func Stamp(t time.Time) time.Duration {
	const most = 4_500_000_000
	if sec := t.Unix(); sec > most || sec < -most {
		return time.Duration(min(max(sec, -most), most)) * time.Second
	}
	return time.Duration(t.UnixNano())
}
