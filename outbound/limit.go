package outbound

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

const (
	maxLimits   = 8
	maxLeakRate = 1e12                     // units per second
	maxDrain    = 100 * 365.25 * 24 * 3600 // seconds: capacity / leak rate, and every wait, stays inside time.Duration
	jitter      = 10 * time.Millisecond    // what the network may take off the distance of two calls
)

// Limit is one limit of a bucket. Unless [Window], [FixedWindow], [Hourly], [Daily],
// [Monthly] or [InFlight] has made it, it is the shape of a leaky bucket: how much it holds,
// how fast that leaks out, and which unit of a [Cost] it counts. In any interval of length
// W at most Capacity + LeakRate*W units go out.
//
// A literal is for APIs that publish a bucket of their own, such as
// Limit{Capacity: 40, LeakRate: 2}. For "n calls per window" use [Window], or, to space
// calls evenly, [Per], [PerSecond], [PerMinute] or [PerHour]: a literal of capacity n that
// leaks n per window lets almost 2n out inside one window, and such APIs refuse them.
//
// A limit is invalid, and [NewBucket] answers [ErrInvalidLimit], unless
// Capacity is above 0 and at most 1e12, LeakRate is above 0 and at most 1e12,
// the bucket drains in no less than a nanosecond and within 100 years, Unit is 0
// to 3, and Name is valid UTF-8. So is a window whose Capacity or LeakRate was changed
// after it was made.
type Limit struct {
	// Capacity is the number of units that may go out at once, after a pause.
	Capacity float64
	// LeakRate is the number of units per second that may go out in the long run. It is 0
	// where they come back by the calendar, or with [Permit.Done].
	LeakRate float64
	// Unit is the index of the number in a [Cost] that this limit counts.
	Unit int
	// Name says which limit this is in errors, events and metrics, and matches
	// a limit with its successor in [Bucket.SetLimits]. It may be empty. Where a bucket
	// has several of one unit without a name, each is named by what it says, such as
	// "10 per 1s". In SetLimits one with other numbers stays the same limit, and keeps the
	// name that says the old ones, if it is the only such one of its unit and window, or of
	// its period and zone. Between buckets of one key it is another limit: give each a name
	// there, and one that comes later as well. [NewSharedBucket] says why.
	Name string

	called   string        // the name that the bucket made up, if it is still the Name
	n        float64       // Per: so many
	window   time.Duration // in any window of this length
	zone     string        // the name of a calendar's time zone
	flaw     string        // what a method found wrong; NewBucket reports it
	kind     leak.Kind
	inFlight bool
}

// Per returns a limit that spaces calls evenly so that the API sees at most n
// of them in any window of this length, wherever the window begins: capacity
// 1, leak rate n/(window + 10 ms). The 10 ms are for arrivals that the network
// moves closer together; at 10 calls per second they cost 1 % of the quota.
//
// The window is the API's, and no distance between calls: with Per(1, 100*time.Millisecond)
// one goes every 110 ms. For a distance of 100 ms write Limit{Capacity: 1, LeakRate: 10}.
func Per(n float64, window time.Duration) Limit {
	l := Limit{Capacity: 1, LeakRate: n / (window + jitter).Seconds(), n: n, window: window}
	switch {
	case !(n > 0) || math.IsInf(n, 0):
		l.flaw = "Per needs a finite number above 0, not " + number(n)
	case window <= 0 || window > maxWait-jitter:
		l.flaw = fmt.Sprintf("Per needs a window above 0 and below 292 years, not %v", window)
	}
	return l
}

// PerSecond is [Per] with a window of one second.
func PerSecond(n float64) Limit { return Per(n, time.Second) }

// PerMinute is [Per] with a window of one minute.
func PerMinute(n float64) Limit { return Per(n, time.Minute) }

// PerHour is [Per] with a window of one hour. It spaces calls evenly, as Per does:
// with PerHour(5_000) one goes every 0.72 s, 300 calls take 215 s, and a faster limit
// beside it, such as PerSecond(10), never binds. [Window] lets as many go as there is room
// for: beside it the 300 calls take 30 s.
func PerHour(n float64) Limit { return Per(n, time.Hour) }

// Burst returns the limit with room for b units at once. The leak rate is
// lowered to (n - b + 1)/(window + 10 ms), so that for whole-number costs the
// API still sees at most n units in any window. It gives up (b-1)/n of the
// quota for good, so keep it as small as the largest call, or the largest
// group of calls, needs: PerMinute(30_000).Burst(3_000) for calls of up to
// 3 000 tokens runs at 27 001 tokens a minute. Without it, calls are spaced evenly,
// however many the window allows: the second of PerMinute(60) goes a second after the
// first, and a faster limit beside it never binds.
//
// It belongs to [Per] and its kin, with 1 <= b <= n, or with a b of 1, which
// changes nothing, whatever n is; on any other limit, and with any other b, it
// makes the limit invalid.
func (l Limit) Burst(b float64) Limit {
	switch {
	case l.flaw != "":
	case l.kind != leak.Leaky:
		l.flaw = "Burst is for limits that space calls evenly: of " + l.says() + " all may go at once as it is"
	case l.window == 0:
		l.flaw = "Burst is for Per, PerSecond, PerMinute and PerHour: set Capacity instead"
	case b != 1 && !(b > 1 && b <= l.n):
		l.flaw = fmt.Sprintf("Burst needs a number from 1 to %s, not %s", number(max(1, l.n)), number(b))
		if b > l.n && b <= maxCapacity {
			l.flaw += fmt.Sprintf("; where an API says that %s may go at once and %s per second later, write Limit{Capacity: %[1]s, LeakRate: %[2]s}",
				number(b), number(l.n/l.window.Seconds()))
		}
	default:
		l.Capacity = b
		l.LeakRate = (l.n - (b - 1)) / (l.window + jitter).Seconds() // exactly that of Per for a b of 1
	}
	return l
}

// Of returns the limit as one that counts this unit of a [Cost], under this
// name: PerMinute(30_000).Burst(3_000).Of(input, "input tokens").
func (l Limit) Of(unit int, name string) Limit {
	l.Unit, l.Name = unit, name
	return l
}

// InFlight returns a limit on calls in progress: at most n have been admitted
// and not yet ended by [Permit.Done], whatever they cost. Its room comes back
// with Done and not with time, so a refusal by it has no RetryAfter. A bucket
// has at most one such limit. Of a shared bucket it counts the calls of this
// worker's bucket only, and [Bucket.SetLimits] leaves it as it is.
//
// If the program forgets a call's Done, the call keeps its place until the garbage collector
// finds its permit, which may be minutes later. Meanwhile others are refused, or wait. The
// [ThrottledError] tells how many calls are in progress, and for how long the oldest.
func InFlight(n int) Limit {
	return Limit{Capacity: float64(n), inFlight: true}
}

// Each returns n and the window of a limit that lets n units go in any window of that length, as [Per] and its
// kin, [Window] and [FixedWindow] make it. Both are 0 for other limits.
func (l Limit) Each() (n float64, window time.Duration) {
	if l.kind == leak.Moving || l.kind == leak.Fixed {
		return l.Capacity, l.window
	}
	return l.n, l.window
}

// String describes the limit, for logs: "input tokens (unit 1): 3000 at once,
// 445.858/s".
func (l Limit) String() string {
	s := number(l.Capacity) + " at once"
	switch {
	case l.inFlight:
		s = number(l.Capacity) + " in progress"
	case l.kind == leak.Moving:
		s = number(l.Capacity) + " in any " + short(l.window)
	case l.kind == leak.Fixed:
		s = number(l.Capacity) + " in " + short(l.window) + " from the first"
	case l.kind.Calendar():
		s = number(l.Capacity) + l.period()
	default:
		s += ", " + number(l.LeakRate) + "/s"
	}
	if l.Unit != 0 {
		s = fmt.Sprintf("(unit %d): ", l.Unit) + s
	} else if l.Name != "" {
		s = ": " + s
	}
	if l.Unit != 0 && l.Name != "" {
		return l.Name + " " + s
	}
	return l.Name + s
}

// check returns what is wrong with the limit, or "".
func (l *Limit) check() string {
	switch {
	case l.flaw != "":
		return l.flaw
	case !(l.Capacity > 0 && l.Capacity <= maxCapacity):
		return "capacity " + number(l.Capacity) + " is not above 0 and at most 1e12"
	case !utf8.ValidString(l.Name):
		return "its name " + quote(l.Name) + " is not valid UTF-8"
	case l.Unit < 0 || l.Unit >= Units:
		return fmt.Sprintf("unit %d is not one of 0 to %d", l.Unit, Units-1)
	case l.inFlight:
		return ""
	case l.kind != leak.Leaky:
		return l.checkKind()
	case !(l.LeakRate > 0 && l.LeakRate <= maxLeakRate):
		return "leak rate " + number(l.LeakRate) + " is not above 0 and at most 1e12 units per second"
	case l.Capacity/l.LeakRate > maxDrain:
		return "it drains in more than 100 years"
	case l.Capacity/l.LeakRate < 1e-9:
		return "it drains in less than a nanosecond, which no clock can tell from at once"
	case l.zone != "":
		return "only a day and a month have a time zone"
	}
	return ""
}

// checkKind is check for a window or a calendar.
func (l *Limit) checkKind() (flaw string) {
	if law := l.law(); l.kind > leak.Monthly || !law.Sound() || l.zone != "" && l.kind <= leak.Hourly {
		return "the Capacity or the LeakRate of " + l.String() + " was changed: make the limit anew"
	}
	if l.kind.Calendar() && l.kind != leak.Hourly {
		_, flaw = zoneOf(l.zone)
	}
	return flaw
}

// law returns what a store is to know of the limit.
func (l *Limit) law() leak.Limit {
	m := leak.Limit{Name: l.Name, Unit: int32(l.Unit), Kind: l.kind, Capacity: l.Capacity, Rate: l.LeakRate, Window: l.window, Zone: l.zone, Unnamed: l.Name != "" && l.unnamed()}
	switch {
	case l.window <= 0:
	case l.kind != leak.Leaky:
		m.Window += jitter
	default:
		m.N = l.n
	}
	return m
}

// limitOf is the way back of law.
func limitOf(l *leak.Limit) Limit {
	m := Limit{Capacity: l.Capacity, LeakRate: l.Rate, Unit: int(l.Unit), Name: l.Name, window: l.Window, zone: l.Zone, kind: l.Kind}
	if l.Unnamed {
		m.called = m.Name
	}
	switch {
	case l.Window <= 0:
	case l.Kind != leak.Leaky:
		m.window -= jitter
	case l.Window > maxWait-jitter || l.N == 0:
		m.window = 0
	default:
		m.n = l.N
	}
	return m
}

// unnamed reports whether the limit has a level and its user gave it no name.
func (l *Limit) unnamed() bool { return !l.inFlight && l.Name == l.called }

// label names the limit in words: its name, or what it says.
func (l *Limit) label() string {
	switch {
	case l.Name != "":
		return l.Name
	case l.inFlight:
		return l.String()
	}
	return l.says()
}

// says returns a name for a limit that has none: what it says.
func (l *Limit) says() string {
	switch {
	case l.kind == leak.Leaky && l.window == 0:
		m := *l
		m.Name = ""
		return m.String()
	case l.kind == leak.Leaky:
		return digits(l.n) + l.shape()
	}
	return digits(l.Capacity) + l.shape()
}

// shape is what the limit says but for its numbers.
func (l *Limit) shape() string {
	switch {
	case l.kind.Calendar():
		return l.period()
	case l.window == 0:
		return ""
	}
	return " per " + short(l.window)
}

// period names the period of a calendar: " per day (Europe/Berlin)".
func (l *Limit) period() string {
	s := " per month"
	switch l.kind {
	case leak.Hourly:
		s = " per hour"
	case leak.Daily:
		s = " per day"
	}
	if l.zone != "" && l.zone != "UTC" {
		s += " (" + l.zone + ")"
	}
	return s
}

// short is a duration without the zeros at its end: "1h".
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// same reports whether both are the same limit at different times.
func (l *Limit) same(m *Limit) bool {
	return l.Unit == m.Unit && l.Name == m.Name && l.inFlight == m.inFlight
}

// find returns the index of the limit that is the same as l, or -1.
func find(limits []Limit, l *Limit) int {
	for i := range limits {
		if limits[i].same(l) {
			return i
		}
	}
	return -1
}

// digits writes a number so that another one is another name.
func digits(f float64) string { return strconv.FormatFloat(f, 'g', 15, 64) }

func number(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

// quote makes a key of any bytes fit for one line of a log, as its first 64 bytes.
func quote(key string) string {
	const most = 64
	if len(key) > most {
		return strconv.Quote(key[:most]) + "…"
	}
	return strconv.Quote(key)
}
