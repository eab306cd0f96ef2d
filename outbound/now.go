package outbound

import (
	"math"
	"time"
)

const (
	maxWait = time.Duration(math.MaxInt64)
	// never is before any time, and before any epoch.
	never = math.MinInt64 / 2
)

// start is the zero of this process's clock, which is monotonic: it neither
// steps nor knows the time of day.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// unixOf returns a time as Unix time. Calendars end in 2112: for them a clock that is set to a
// later time, or to one before 1827, stands.
func unixOf(t time.Time) time.Duration {
	const most = 4_500_000_000
	if sec := t.Unix(); sec > most || sec < -most {
		return time.Duration(min(max(sec, -most), most)) * time.Second
	}
	return time.Duration(t.UnixNano())
}

// later returns t + d, at most the end of time. t may be negative: a clock's
// zero is anywhere.
func later(t, d time.Duration) time.Duration {
	if d > maxWait-max(0, t) {
		return maxWait
	}
	return t + d
}
