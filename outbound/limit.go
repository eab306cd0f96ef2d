package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
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

	form spec.Form // what a function or a method has made of it
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
	return limitOf(spec.Per(n, window))
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
	return limitOf(l.spec().Burst(b))
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
	return limitOf(spec.InFlight(float64(n)))
}

// Lease returns the limit of [InFlight] with another lease than 30 s. A process of a shared bucket
// that has not reached the store for a lease loses its slots. It is 3 s to 1 h. A bucket in this
// process has no use for it. On any other limit, and with any other lease, it makes the limit
// invalid.
func (l Limit) Lease(d time.Duration) Limit {
	return limitOf(l.spec().Lease(d))
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
	return limitOf(l.spec().Adaptive())
}

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
	return limitOf(spec.Window(store.Window, "Window", n, window))
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
	return limitOf(spec.Window(store.Fixed, "FixedWindow", n, window))
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
	return limitOf(l.spec().From(day))
}

// Each returns n and the window of a limit of [Per], [PerSecond], [PerMinute], [PerHour], [Window]
// or [FixedWindow]. Both are 0 for other limits.
func (l Limit) Each() (n float64, window time.Duration) {
	return l.spec().Each()
}

// String returns the limit in the words that [ParseLimit] reads: "tokens (unit 1): 30000 per 1m,
// 3000 burst".
func (l Limit) String() string {
	return l.spec().String()
}

// ParseLimit reads a limit as people write it, and as [Limit.String] prints it:
//
//	10 per 1s                     Per(10, time.Second); also "10 per second", minute or hour
//	60 per 1m, 5 burst            Per(60, time.Minute).Burst(5); also "5 burst, 60 per 1m"
//	40 burst, 2/s                 Limit{Capacity: 40, LeakRate: 2}; also "/m" and "/h"
//	100 in any 1m                 Window(100, time.Minute)
//	30 in 1m from the first       FixedWindow(30, time.Minute)
//	10000 per day Europe/Berlin   Daily; also "per hour UTC", "per week UTC", "per month UTC"
//	900 per month UTC from day 15 Monthly(900, time.UTC).From(15); also "per week"
//	5 in flight                   InFlight(5)
//	5 in flight, 1m lease         InFlight(5).Lease(time.Minute)
//	64 in flight, adaptive        InFlight(64).Adaptive()
//	10 per 1s, version 2          one of these, with a Version
//
// A burst above n, as in "40 burst, 2 per 1s", can only be the bucket that an API publishes, and is
// read as "40 burst, 2/s". A name and a unit come first: "tokens (unit 1): 30000 per 1m". A name
// may be in double quotes, as in Go. The error is a [*LimitError].
func ParseLimit(s string) (Limit, error) {
	l, flaw := spec.Parse(s)
	if flaw != "" {
		return Limit{}, &LimitError{Limit: limitOf(l), Reason: spec.Quote(s) + ": " + flaw}
	}
	return limitOf(l), nil
}

// MarshalText writes what String prints, as JSON does. The zero Limit is the empty text, and so is
// one that has only a name or a unit. The error of an invalid limit is a [*LimitError].
func (l Limit) MarshalText() ([]byte, error) {
	if l.Of(0, "") == (Limit{}) {
		return nil, nil
	}
	if flaw := l.spec().Check(); flaw != "" {
		return nil, &LimitError{Limit: l, Reason: flaw}
	}
	return []byte(l.String()), nil
}

// UnmarshalText is [ParseLimit], and reads the empty text as the zero Limit. After an error the
// limit is as it was.
func (l *Limit) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*l = Limit{}
		return nil
	}
	parsed, err := ParseLimit(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

// UnmarshalJSON reads a string as UnmarshalText does, or an object, with each duration a string:
//
//	{"n":30000,"per":"1m","burst":3000,"unit":1,"name":"tokens"}
//	{"n":100,"window":"1m","version":2}, or "fixed_window"
//	{"n":10000,"per":"day","zone":"Europe/Berlin"}, or "week", "month", or "hour" with "UTC"
//	{"n":900,"per":"month","zone":"UTC","from_day":15}
//	{"capacity":40,"leak_rate":2}
//	{"in_flight":5}
//
// A null changes nothing. The error is a [*LimitError], and the limit is then as it was.
func (l *Limit) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	text, flaw := spec.ParseJSON(data)
	if flaw != "" {
		return &LimitError{Reason: flaw}
	}
	return l.UnmarshalText([]byte(text))
}

func calendarOf(kind store.Kind, name string, n float64, zone *time.Location) Limit {
	return limitOf(spec.Calendar(kind, name, n, zone))
}

// spec returns the limit as package spec has it.
func (l *Limit) spec() spec.Limit {
	return spec.Limit{Capacity: l.Capacity, LeakRate: l.LeakRate, Unit: l.Unit, Name: l.Name, Version: l.Version, Form: l.form}
}

// label names the limit in words: its name, or what it says, such as "10 per 1s".
func (l *Limit) label() string {
	return l.spec().Label()
}

// limitOf is the inverse of spec.
func limitOf(l spec.Limit) Limit {
	return Limit{l.Capacity, l.LeakRate, l.Unit, l.Name, l.Version, l.Form}
}

// checkLimits validates the limits of a bucket, which may be shared, and appends them to own.
func checkLimits(own []spec.Limit, bucket string, limits []Limit, shared bool) ([]spec.Limit, error) {
	for i := range limits {
		own = append(own, limits[i].spec())
	}
	bad, flaw := spec.CheckAll(own, shared)
	switch {
	case flaw == "":
		return own, nil
	case bad == nil:
		return nil, &LimitError{Key: bucket, Reason: flaw}
	}
	return nil, &LimitError{Key: bucket, Limit: limitOf(*bad), Reason: flaw}
}

// limitsOf returns limits as callers know them.
func limitsOf(all []spec.Limit) []Limit {
	list := make([]Limit, len(all))
	for i := range all {
		list[i] = limitOf(all[i])
	}
	return list
}
