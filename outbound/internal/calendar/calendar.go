// Package calendar finds the periods of a calendar in a time zone.
package calendar

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
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

// from is between the time zone and the first day of weeks or months, in a store.Limit's Zone.
const from = " from day "

// Anchor returns the Zone of a limit whose weeks or months begin on a day, and what is wrong with
// the day, or "". A Zone without a day has day 1.
func Anchor(kind store.Kind, zone string, day int) (spec, flaw string) {
	most := 31
	switch kind {
	case store.Weekly:
		most = 7
	case store.Monthly:
	default:
		return zone, "From is for Weekly and Monthly"
	}
	if zone, _, _ = strings.Cut(zone, from); day > 1 && day <= most {
		return zone + from + strconv.Itoa(day), ""
	} else if day != 1 {
		flaw = fmt.Sprintf("From needs a day from 1 to %d, not %d", most, day)
	}
	return zone, flaw
}

// Parse returns the time zone of a limit's Zone, the first day of its weeks or months, and what is
// wrong with it, or "".
func Parse(kind store.Kind, spec string) (zone *time.Location, day int, flaw string) {
	name, text, ok := strings.Cut(spec, from)
	day = 1
	if ok {
		day, _ = strconv.Atoi(text)
		var again string
		if again, flaw = Anchor(kind, name, day); flaw == "" && again != spec {
			flaw = fmt.Sprintf("%.64q is not like \"UTC from day 15\"", spec)
		}
		if flaw != "" {
			return nil, 0, flaw
		}
	}
	zone, flaw = Zone(name)
	return zone, day, flaw
}

// Calendar finds the periods of a bucket's limits at a time.
type Calendar struct {
	limits []rule
	last   atomic.Pointer[span]
}

// rule is how a limit counts.
type rule struct {
	kind store.Kind
	zone *time.Location // nil if the limit does not count by the calendar, or counts by UTC's hours
	day  int            // the first of a month, or of a week, where Monday is 1
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
	c := &Calendar{limits: make([]rule, len(limits))}
	for i, l := range limits {
		r := &c.limits[i]
		if r.kind = l.Kind; r.kind > store.Hourly {
			r.zone, r.day, _ = Parse(l.Kind, l.Zone)
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
	m := &span{from: math.MinInt64, until: math.MaxInt64, periods: make([]store.Period, len(c.limits))}
	for i, r := range c.limits {
		if !r.kind.Calendar() {
			continue
		}
		p := r.period(sec)
		m.periods[i] = p
		m.from, m.until = max(m.from, p.Begin), min(m.until, p.End)
	}
	return m
}

// period returns the period that a Unix time is in. The periods follow each other without a gap,
// whatever the zone's clocks do. A month without its first day begins on its last one, as the
// billing cycles of Stripe do (docs.stripe.com/billing/subscriptions/billing-cycle).
func (r rule) period(sec int64) store.Period {
	if r.kind == store.Hourly {
		begin := sec - (sec%3600+3600)%3600
		return store.Period{Begin: begin, End: begin + 3600, Next: begin + 7200}
	}
	local := time.Unix(sec, 0).In(r.zone)
	year, month, day := local.Date()
	begins := func(i int) int64 {
		switch r.kind {
		case store.Monthly:
			last := time.Date(year, month+time.Month(i)+1, 0, 0, 0, 0, 0, time.UTC).Day()
			return dayBegins(r.zone, year, month+time.Month(i), min(r.day, last))
		case store.Weekly:
			since := (int(local.Weekday()) + 7 - r.day) % 7
			return dayBegins(r.zone, year, month, day-since+7*i)
		}
		return dayBegins(r.zone, year, month, day+i)
	}
	i, times := -1, [3]int64{}
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
