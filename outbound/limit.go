package outbound

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	maxLimits   = 8
	maxLeakRate = 1e12                     // units per second
	maxDrain    = 100 * 365.25 * 24 * 3600 // seconds: capacity / leak rate, and every wait, stays inside time.Duration
	jitter      = 10 * time.Millisecond    // what the network may take off the distance of two calls
)

// Limit is one limit of a bucket: a leaky bucket, unless [Window], [FixedWindow], [Hourly],
// [Daily], [Weekly], [Monthly] or [InFlight] has made it. In any interval of length W at most
// Capacity + LeakRate*W units leave.
//
// A literal is for APIs that publish a bucket of their own, such as Limit{Capacity: 40, LeakRate:
// 2}. For "n calls per window" use [Window], or [Per], [PerSecond], [PerMinute] or [PerHour] to
// space calls evenly. A literal of capacity n that leaks n per window admits almost 2n in one
// window, and such APIs refuse them.
//
// A valid limit has a Capacity and a LeakRate above 0 and at most 1e12, a Unit of 0 to 3, and a
// Name in UTF-8. It drains in 1 ns to 100 years. For an invalid one [NewBucket] returns
// [ErrInvalid]. A limit of [Per] or another function is invalid, too, if its Capacity or LeakRate
// was changed afterwards.
//
// [ParseLimit] reads a limit from text, and JSON, flags and other configuration read it the same
// way.
type Limit struct {
	// Capacity is the largest burst in units, after a pause.
	Capacity float64
	// LeakRate is the number of units per second in the long run. It is 0 for a calendar quota and
	// for calls in flight.
	LeakRate float64
	// Unit is the index of the number in a [Cost] that this limit counts.
	Unit int
	// Name says which limit this is in errors, events and metrics, and matches a limit with its
	// successor in [Bucket.SetLimits]. If it is empty, the limit's kind and its window, or its period
	// and zone, match it. Limits of one unit and kind with the same window need names, and so need
	// two literals of one unit.
	Name string
	// Version orders the limits of a shared bucket: the highest counts, see [NewSharedBucket]. That
	// of a set is the highest of its limits, at most 2,147,483,647. If it is zero, there is none.
	Version int

	n        float64       // Per: so many; InFlight: the most of an Adaptive
	window   time.Duration // in any window of this length
	zone     string        // the name of a calendar's time zone
	flaw     string        // what a method found wrong; NewBucket reports it
	made     [2]float64    // the Capacity and the LeakRate that a function has set; zero in a literal
	kind     store.Kind
	inFlight bool
}

// Per returns a limit that spaces calls evenly, so that the API sees at most n of them in any
// window of this length. Its capacity is 1, and its leak rate n/(window + 10 ms). The 10 ms are for
// arrivals that the network moves closer together; at 10 calls per second they cost 1 % of the
// quota.
//
// The window is the API's, not the distance of calls: with Per(1, 100*time.Millisecond) one call
// leaves every 110 ms. For a distance of 100 ms write Limit{Capacity: 1, LeakRate: 10}. That admits
// every call of a ticker of exactly 100 ms. PerSecond(10) refuses each second one.
//
// n is above 0. For a suspended tenant refuse calls before you ask, or use [Bucket.Pause].
func Per(n float64, window time.Duration) Limit {
	l := Limit{Capacity: 1, LeakRate: n / (window + jitter).Seconds(), n: n, window: window}
	switch {
	case !(n > 0) || math.IsInf(n, 0):
		l.flaw = number(n) + " per " + short(window) + ": the number has to be finite and above 0"
	case window <= 0 || window > maxWait-jitter:
		l.flaw = fmt.Sprintf("Per needs a window above 0 and below 292 years, not %v", window)
	}
	return l.intact()
}

// PerSecond is [Per] with a window of one second.
func PerSecond(n float64) Limit { return Per(n, time.Second) }

// PerMinute is [Per] with a window of one minute.
func PerMinute(n float64) Limit { return Per(n, time.Minute) }

// PerHour is [Per] with a window of one hour. It spaces calls evenly, as Per does: with
// PerHour(5_000) one call leaves every 0.72 s, and 300 calls take 215 s. A faster limit in the same
// bucket, such as PerSecond(10), never binds. With [Window] and PerSecond(10) the 300 calls take 30
// s.
func PerHour(n float64) Limit { return Per(n, time.Hour) }

// Burst returns the limit with a capacity of b units. The leak rate is lowered to (n - b +
// 1)/(window + 10 ms), so that for whole-number costs the API still sees at most n units in any
// window. It loses (b-1)/n of the quota, so keep it as small as the largest call or group of calls.
// PerMinute(600).Burst(10), for pages of ten calls each, runs at 591 calls a minute. For the tokens
// of language models use [Window]: package estimate has their limits.
// Without Burst calls are spaced evenly: the second of PerMinute(60) leaves a second after the
// first.
//
// Burst is for limits of [Per], [PerSecond], [PerMinute] and [PerHour], with 1 <= b <= n. A b of 1
// changes nothing, whatever n is. Any other limit or b makes the limit invalid.
func (l Limit) Burst(b float64) Limit {
	switch {
	case l.flaw != "":
	case l.kind != store.Leaky:
		l.flaw = "Burst is for limits that space calls evenly: all of " + digits(l.Capacity) + l.shape() + " may leave in one burst without it"
	case l.window == 0:
		l.flaw = "Burst is for Per, PerSecond, PerMinute and PerHour: set Capacity instead"
	case b != 1 && !(b > 1 && b <= l.n):
		l.flaw = fmt.Sprintf("Burst needs a number from 1 to %s, not %s", number(max(1, l.n)), number(b))
		if b > l.n && b <= maxCapacity {
			l.flaw += fmt.Sprintf("; if an API admits %s in one burst and %s per second later, write Limit{Capacity: %[1]s, LeakRate: %[2]s}",
				number(b), number(l.n/l.window.Seconds()))
		}
	default:
		l.Capacity = b
		l.LeakRate = (l.n - (b - 1)) / (l.window + jitter).Seconds() // exactly that of Per for a b of 1
		l = l.intact()
	}
	return l
}

// Of returns the limit as one that counts this unit of a [Cost], under this name:
// Window(30_000, time.Minute).Of(input, "input tokens").
func (l Limit) Of(unit int, name string) Limit {
	l.Unit, l.Name = unit, name
	return l
}

// InFlight returns a limit on calls in flight: at most n have been admitted and not yet ended by
// [Permit.Done], whatever they cost. Only Done frees its capacity, so in memory its refusals have
// no RetryAfter. A bucket has at most one such limit. A job of [Do] is one call, whatever its
// requests are: see [Permit.AcquireIn].
//
// In a shared bucket n counts the calls of all processes, even as the only limit. At most n are in
// flight, plus those that were in flight in a process when it had not reached the store for most of
// a lease. A process that has ended loses its slots within a lease, which is 30 s: see
// [Limit.Lease]. RetryAfter of a refusal is when to ask again. A queue is granted slots as they
// become free, and processes that wait have equal shares.
//
// This does not cover that calls end with the lease, nor a strict order between processes. Two more
// cases are not covered. One is a store that loses its data, if a new process asks before one that
// holds slots. The other is a store's clock that is set forward more than once in a lease while a
// process is cut off. If a request takes more than a tenth of a call, and n is below the number
// of processes, fewer than 0.9 n calls are in flight. Equal shares need queues: a process with
// slots admits its own next call first. A limit for this process alone is a bucket of
// [NewBucket] with an InFlight, around which a call acquires first.
//
// A call that needs another call of the same limit to end waits for itself until its deadline. An
// example is a token source inside a paced client's Base that uses that client: give it its own.
//
// If a program forgets Done, its call counts until the garbage collector finds the permit, which
// may be minutes later. The [ThrottledError] has the number of calls in progress, and the age of
// the oldest.
func InFlight(n int) Limit {
	return Limit{Capacity: float64(n), inFlight: true}.intact()
}

// Lease returns the limit of [InFlight] with another lease than 30 s. A process of a shared bucket
// that has not reached the store for a lease loses its slots. It is 3 s to 1 h. A bucket in this
// process has no use for it. On any other limit, and with any other lease, it makes the limit
// invalid.
func (l Limit) Lease(d time.Duration) Limit {
	switch {
	case l.flaw != "":
	case !l.inFlight:
		l.flaw = "Lease is for InFlight"
	case l.n != 0:
		l.flaw = adaptiveHere
	case d < store.MinLease || d > store.MaxLease:
		l.flaw = fmt.Sprintf("a lease is 3 s to 1 h, not %v", d)
	case d == store.DefaultLease:
		l.window = 0
	default:
		l.window = d
	}
	return l
}

// Adaptive returns the limit of [InFlight] as one that finds out how many calls in flight an API
// takes, from 1 to n. It begins with n. A refusal halves it: each [Permit.Refused], as for a 429,
// and each hold for the reason "concurrency". Refusals of calls that were admitted before the last
// halving change nothing. After as many successes in sequence as there may be calls in flight, it
// admits one more. A success counts if its call was admitted after the last halving, and all
// capacity was in use meanwhile. [State] and [Bucket.Explain] have the limit in force as Capacity.
//
// A refusal holds the bucket, too. Adaptive is for a bucket in this process. In a shared one, with
// Lease, and on any other limit it is invalid.
func (l Limit) Adaptive() Limit {
	switch {
	case l.flaw != "":
	case !l.inFlight:
		l.flaw = "Adaptive is for InFlight"
	case l.window != 0:
		l.flaw = adaptiveHere
	default:
		l.n = l.Capacity
	}
	return l
}

const adaptiveHere = "Adaptive is for a bucket in this process, without a Lease"

// Window returns a limit of n units in any window of this length, wherever the window begins. Up to
// n leave in one burst, and each is free again when the window has passed since it left. It keeps
// 10 ms more than the window, for arrivals that the network moves closer together, and so uses
// n/(window + 10 ms) of the quota.
//
// Use it for an API that counts calls in fixed or sliding windows: Window(100, 10*time.Second), or
// PerSecond(10) with Window(5_000, time.Hour), which admits 300 calls in 30 s. [Per] spaces calls
// evenly, and suits an API of unknown kind. The bucket remembers a window in 64 parts, so it may
// free a unit up to a 64th of the window late. So Window(10, time.Second) admits some 910 of 1,000
// calls of a ticker of exactly 100 ms.
//
// A first burst waits for its connections, which take two or three round trips, and the next one
// does not. Package transport reports such calls as [AnswerSent]. Without it open a connection
// before the first burst.
//
// After a hold as many leave as the window has capacity for. To space them, add a limit of [Per] to
// the bucket. What left just before a hold counts longer by the hold.
//
// n is above 0 and at most 1e12, and the window is 1 ms to 100 years.
func Window(n float64, window time.Duration) Limit {
	return windowOf(store.Window, "Window", n, window)
}

// FixedWindow returns a limit of n units in a window that begins with the first call after the
// window before. Its end frees all units. In a window that begins at another time up to 2n may
// leave. Use it for an API whose window begins with the first call, and [Window] for every other
// and if in doubt.
//
// The bucket's window begins when the first call is admitted, and the API's when it arrives. If
// that is more than 10 ms later, or the call never arrives, the two differ, and the API refuses
// calls. With connections that took 150 ms or failed at first it refused 9 or 10 of 20; with Window
// 0 or 1. Take FixedWindow only if the first call's arrival is sure, as on a connection that is
// open.
//
// RetryAfter, NextIn and EmptyIn are the time until the end of the window. A call is admitted then,
// and no call in the window's last 20 ms. A call that needs the next window is refused until then,
// and a queue asks again then. After a hold, a slow-down, a Resume, or a returned first call, it is
// unknown when the API's window began. The bucket's then counts until a window after its last call.
//
// n and window are as with Window.
func FixedWindow(n float64, window time.Duration) Limit {
	return windowOf(store.Fixed, "FixedWindow", n, window)
}

const (
	minWindow = time.Millisecond
	maxWindow = time.Duration(maxDrain * 1e9)
)

func windowOf(kind store.Kind, name string, n float64, window time.Duration) Limit {
	l := Limit{Capacity: n, window: window, kind: kind}
	if l.flaw = flawOfNumber(name, n); l.flaw == "" && (window < minWindow || window > maxWindow) {
		l.flaw = fmt.Sprintf("%s needs a window of 1 ms to 100 years, not %v", name, window)
	}
	if l.flaw == "" {
		l.LeakRate = n / (window + jitter).Seconds()
		if law := l.law(); !law.Sound() {
			l.flaw = fmt.Sprintf("%s cannot count %s in %v: that is above 1e12 per second, or next to nothing", name, number(n), window)
		}
	}
	return l.intact()
}

// Hourly returns a limit of n units in each hour of UTC. The rules of [Daily] apply.
func Hourly(n float64) Limit { return calendarOf(store.Hourly, "Hourly", n, time.UTC) }

// Daily returns a limit of n units in each day of a time zone, for quotas that are reset at
// midnight, such as those of YouTube in America/Los_Angeles. Up to n leave in one burst. Days have
// 23 or 25 hours if clocks change. With [Bucket.Fillup] it counts what was spent today;
// [State.EmptyIn] is when the next day begins.
//
// Clocks differ, and calls travel, so no call leaves within a second of midnight. A call for the
// next day is refused until then, and a queue asks again then. A shared bucket counts by its
// store's clock. A bucket in this process counts by the time of day of its machine.
//
// The zone's name must load with [time.LoadLocation], because a limit in JSON or in a shared store
// has only that name. [time.Local] is invalid, and so is a zone of [time.FixedZone] with another
// name. On a machine without zone data the program imports time/tzdata.
//
// n is above 0 and at most 1e12.
func Daily(n float64, zone *time.Location) Limit { return calendarOf(store.Daily, "Daily", n, zone) }

// Weekly returns a limit of n units in each week of a time zone, from Monday on unless [Limit.From]
// says otherwise. The rules of [Daily] apply.
func Weekly(n float64, zone *time.Location) Limit { return calendarOf(store.Weekly, "Weekly", n, zone) }

// Monthly returns a limit of n units in each month of a time zone: a budget. Months begin on the
// first unless [Limit.From] says otherwise. The rules of [Daily] apply.
func Monthly(n float64, zone *time.Location) Limit {
	return calendarOf(store.Monthly, "Monthly", n, zone)
}

// From returns a limit of [Monthly] whose months begin on this day, 1 to 31, such as the day of
// billing: Monthly(10_000, time.UTC).From(15). A month without that day begins on its last one. The
// weeks of [Weekly] begin on day 1, Monday, to 7, Sunday. Any other limit or day makes the limit
// invalid.
func (l Limit) From(day int) Limit {
	if l.flaw == "" {
		l.zone, l.flaw = calendar.Anchor(l.kind, l.zone, day)
	}
	return l
}

func calendarOf(kind store.Kind, name string, n float64, zone *time.Location) Limit {
	l := Limit{Capacity: n, kind: kind}
	if l.flaw = flawOfNumber(name, n); l.flaw == "" && kind != store.Hourly {
		if l.zone, l.flaw = calendar.Name(zone); l.flaw != "" {
			l.flaw = name + ": " + l.flaw
		}
	}
	return l.intact()
}

// flawOfNumber returns what is wrong with the number of units of a window or a period, or "".
func flawOfNumber(name string, n float64) string {
	if !(n > 0 && n <= maxCapacity) {
		return name + " needs a number above 0 and at most 1e12, not " + number(n)
	}
	return ""
}

// Each returns n and the window of a limit of [Per], [PerSecond], [PerMinute], [PerHour], [Window]
// or [FixedWindow]. Both are 0 for other limits.
func (l Limit) Each() (n float64, window time.Duration) {
	switch {
	case l.kind == store.Window || l.kind == store.Fixed:
		return l.Capacity, l.window
	case l.inFlight:
		return 0, 0
	}
	return l.n, l.window
}

// String returns the limit in the words that [ParseLimit] reads: "tokens (unit 1): 30000 per 1m,
// 3000 burst".
func (l Limit) String() string {
	name := l.Name
	if strconv.Quote(name) != `"`+name+`"` || strings.TrimSpace(name) != name || strings.Contains(name, "(unit ") {
		name = strconv.Quote(name)
	}
	if l.Unit != 0 {
		name = strings.TrimLeft(fmt.Sprintf("%s (unit %d)", name, l.Unit), " ")
	}
	if name != "" {
		name += ": "
	}
	if l.Version != 0 {
		return fmt.Sprintf("%s%s, version %d", name, l.spec(), l.Version)
	}
	return name + l.spec()
}

// spec is String without the name, the unit and the version.
func (l *Limit) spec() string {
	n := digits(l.Capacity)
	switch {
	case l.inFlight && l.n != 0:
		return digits(l.n) + " in flight, adaptive"
	case l.inFlight && l.window != 0:
		return n + " in flight, " + short(l.window) + " lease"
	case l.inFlight:
		return n + " in flight"
	case l.kind != store.Leaky:
		return n + l.shape()
	case l.window == 0:
		return n + " burst, " + leakRate(l.LeakRate)
	case l.Capacity == 1:
		return digits(l.n) + l.shape()
	}
	return digits(l.n) + l.shape() + ", " + n + " burst"
}

// period names the period of a calendar: " per day Europe/Berlin".
func (l *Limit) period() string {
	switch l.kind {
	case store.Hourly:
		return " per hour UTC"
	case store.Daily:
		return " per day " + l.zone
	case store.Weekly:
		return " per week " + l.zone
	}
	return " per month " + l.zone
}

// timeUnit is a unit of time that has names in the text of a limit.
type timeUnit struct {
	short, long string
	time.Duration
}

var timeUnits = [...]timeUnit{{"/s", "second", time.Second}, {"/m", "minute", time.Minute}, {"/h", "hour", time.Hour}}

// leakRate writes a rate in units per second so that the text gives the same number: by the minute
// or the hour if its text by the second is long.
func leakRate(perSecond float64) string {
	best := digits(perSecond) + "/s"
	for _, u := range timeUnits[1:] {
		if len(best) <= 8 {
			break
		}
		n, _ := strconv.ParseFloat(strconv.FormatFloat(perSecond*u.Seconds(), 'g', 15, 64), 64)
		if s := digits(n) + u.short; len(s) < len(best) && n/u.Seconds() == perSecond {
			best = s
		}
	}
	return best
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
	case l.Unit < 0 || l.Unit >= units:
		return fmt.Sprintf("unit %d is not one of 0 to %d", l.Unit, units-1)
	case l.kind == store.Leaky && !l.inFlight && !(l.LeakRate > 0 && l.LeakRate <= maxLeakRate):
		return "leak rate " + number(l.LeakRate) + " is not above 0 and at most 1e12 units per second"
	case l.Version < 0 || l.Version > math.MaxInt32:
		return fmt.Sprintf("version %d is not one of 0 to %d", l.Version, math.MaxInt32)
	case l.made != [2]float64{} && l.made != l.intact().made:
		return "the Capacity or the LeakRate of " + l.spec() + " was changed: make the limit again"
	case l.inFlight || l.kind == store.Hourly:
		return ""
	case l.kind.Calendar():
		_, _, flaw := calendar.Parse(l.kind, l.zone)
		return flaw
	case l.kind == store.Leaky && l.Capacity/l.LeakRate > maxDrain:
		return "it drains in more than 100 years"
	case l.kind == store.Leaky && l.Capacity/l.LeakRate < 1e-9:
		return "it drains in less than a nanosecond, which no clock can measure"
	}
	return ""
}

// intact notes the numbers with which the limit was made.
func (l Limit) intact() Limit {
	l.made = [2]float64{l.Capacity, l.LeakRate}
	return l
}

// law returns the limit as a store has it.
func (l *Limit) law() store.Limit {
	m := store.Limit{Name: l.Name, Unit: int8(l.Unit), Kind: l.kind, Capacity: l.Capacity, Rate: l.LeakRate, Window: l.window, Zone: l.zone, Version: int32(l.Version)}
	if l.Name == "" {
		m.Name, m.Unnamed = l.shape(), true
	}
	switch {
	case l.window <= 0:
	case l.kind != store.Leaky:
		m.Window += jitter
	default:
		m.N = l.n
	}
	return m
}

// limitOf is the inverse of law.
func limitOf(l *store.Limit) Limit {
	m := Limit{Capacity: l.Capacity, LeakRate: l.Rate, Unit: int(l.Unit), Name: l.Name, Version: int(l.Version), window: l.Window, zone: l.Zone, kind: l.Kind}
	if l.Unnamed {
		m.Name = ""
	}
	switch {
	case l.Window <= 0:
	case l.Kind != store.Leaky:
		m.window -= jitter
	case l.Window > maxWait-jitter || l.N == 0:
		m.window = 0
	default:
		m.n = l.N
	}
	if m.window != 0 || m.kind != store.Leaky {
		m = m.intact()
	}
	return m
}

// label names the limit in words: its name, or what it says, such as "10 per 1s".
func (l *Limit) label() string {
	switch {
	case l.Name != "":
		return l.Name
	case l.kind == store.Leaky && l.window != 0 && !l.inFlight:
		return digits(l.n) + l.shape()
	}
	return l.spec()
}

// shape is the label without its number. It identifies a limit without a name.
func (l *Limit) shape() string {
	switch {
	case l.kind.Calendar():
		return l.period()
	case l.kind == store.Window:
		return " in any " + short(l.window)
	case l.kind == store.Fixed:
		return " in " + short(l.window) + " from the first"
	case l.window == 0 || l.inFlight:
		return ""
	}
	return " per " + short(l.window)
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

// digits writes a number so that it is read as the same.
func digits(f float64) string {
	if math.Abs(f) < 1e-6 {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

// quote makes a key of any bytes fit for one line of a log, as its first 64 bytes.
func quote(key string) string {
	const most = 64
	if len(key) > most {
		return strconv.Quote(key[:most]) + "…"
	}
	return strconv.Quote(key)
}
