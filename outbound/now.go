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

// start is the zero of this process's monotonic clock, which does not step.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// later returns t + d, at most the end of time. t may be negative: a clock's
// zero is anywhere.
func later(t, d time.Duration) time.Duration {
	if d > maxWait-max(0, t) {
		return maxWait
	}
	return t + d
}
