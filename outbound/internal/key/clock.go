package key

import (
	"math"
	"time"
)

// Start is the zero of this process's monotonic clock, which does not step.
var Start = time.Now()

// A call at Never is unknown.
const Never = math.MinInt64 / 2

// Now returns the time since Start.
func Now() time.Duration { return time.Since(Start) }

// Later returns t + d, at most the end of time. t may be negative: a clock's zero is anywhere.
func Later(t, d time.Duration) time.Duration {
	if d > math.MaxInt64-max(0, t) {
		return math.MaxInt64
	}
	return t + d
}
