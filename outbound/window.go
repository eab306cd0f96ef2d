package outbound

import (
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Window returns a limit of n units in any window of this length, wherever the window
// begins. As many go at once as there is room for, up to n: they come back when the window
// has passed since they went. It keeps 10 ms more than the window, for arrivals that the
// network moves closer together, and so uses n/(window + 10 ms) of the quota.
//
// It is the limit for an API that counts calls, be it in fixed windows or in sliding ones:
// Window(100, 10*time.Second), or PerSecond(10) beside Window(5_000, time.Hour), which lets
// 300 calls go in 30 s. [Per] spaces calls evenly, and is kinder to an API of unknown kind.
// The bucket remembers a window in 64 parts, so a unit may come back up to a 64th of the
// window late.
//
// After a hold nobody knows what the API still counts. So of the bucket's limit with the shortest
// window calls then go evenly until that has passed. A long window alone is that limit, and it
// hurts: after a hold of a second, 300 calls of Window(5_000, time.Hour) take 3m46s, and 31 s beside
// PerSecond(10). Give a long window a short limit for company.
//
// n is above 0 and at most 1e12, and the window is 1 ms to 100 years.
func Window(n float64, window time.Duration) Limit { return windowOf(leak.Moving, "Window", n, window) }

// FixedWindow returns a limit of n units in a window that begins with the first call after
// the one before has ended: all of it comes back at once. In a window that begins anywhere
// else up to 2n may go. It is for an API whose window begins with the first call. For every
// other, and where in doubt, [Window] is the limit.
//
// The bucket's window begins when the first call is admitted, and the API's when it arrives.
// If that is more than 10 ms later, or the call never arrives, the two differ, and the API refuses
// calls: with connections that took 150 ms or failed at first it refused 9 or 10 of 20, where
// Window had 0 or 1. Take FixedWindow only if the first call's arrival is sure, as on a connection
// that is open.
//
// RetryAfter, NextIn and EmptyIn tell when the window is over, and who comes back then goes; so do the
// calls of a queue, if the bucket is in this process. Places that are booked ahead, as those of a queue
// in a shared bucket, are as of a Window, a window after the calls that have gone, because the window's
// first call may still be given back. So may Book refuse a call for less time than its Wait: see
// [Booking.Returns]. After a hold, a slow-down, a Resume, or a returned first call, nobody knows when
// that is, and the limit is a Window until one has passed without a call.
//
// n and window are as with Window.
func FixedWindow(n float64, window time.Duration) Limit {
	return windowOf(leak.Fixed, "FixedWindow", n, window)
}

const (
	minWindow = time.Millisecond
	maxWindow = time.Duration(maxDrain * 1e9)
)

func windowOf(kind leak.Kind, name string, n float64, window time.Duration) Limit {
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
	return l
}

// Hourly returns a limit of n units in each hour of UTC. What [Daily] says holds for it.
func Hourly(n float64) Limit { return calendarOf(leak.Hourly, "Hourly", n, time.UTC) }

// Daily returns a limit of n units in each day of a time zone, for quotas that come back at
// midnight, such as those of YouTube in America/Los_Angeles: as many go at once as there is
// room for. Days have 23 or 25 hours where clocks change. With [Bucket.Fillup] it is a
// meter: what was spent today, and with [State.EmptyIn] when the next day begins.
//
// Clocks differ, and calls travel: what goes within a second of midnight counts in both
// days, and the new day begins a second late. A shared bucket counts by its store's clock.
// A bucket in this process goes by the time of day of its machine.
//
// The zone's name has to load with [time.LoadLocation], because a limit in JSON or in a
// shared store has nothing else of it: a zone of [time.FixedZone] that has another name,
// and [time.Local], which is another zone on each machine, are refused. On a machine without
// zone data the program imports time/tzdata.
//
// n is above 0 and at most 1e12.
func Daily(n float64, zone *time.Location) Limit { return calendarOf(leak.Daily, "Daily", n, zone) }

// Monthly returns a limit of n units in each month of a time zone: a budget. What [Daily]
// says holds for it.
func Monthly(n float64, zone *time.Location) Limit {
	return calendarOf(leak.Monthly, "Monthly", n, zone)
}

func calendarOf(kind leak.Kind, name string, n float64, zone *time.Location) Limit {
	l := Limit{Capacity: n, kind: kind}
	if l.flaw = flawOfNumber(name, n); l.flaw == "" && kind != leak.Hourly {
		if l.zone, l.flaw = nameOf(zone); l.flaw != "" {
			l.flaw = name + ": " + l.flaw
		}
	}
	return l
}

// flawOfNumber returns what is wrong with the number of units of a window or a period, or "".
func flawOfNumber(name string, n float64) string {
	if !(n > 0 && n <= maxCapacity) {
		return name + " needs a number above 0 and at most 1e12, not " + number(n)
	}
	return ""
}
