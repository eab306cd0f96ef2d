package fallback

import (
	"math"
	"time"
)

// start is the zero of this process's clock. That is monotonic: it neither steps nor knows
// the time of day.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// unix returns the Unix time. It steps when somebody sets the clock.
func unix() time.Duration { return time.Duration(time.Now().UnixNano()) }

// later returns t + d, at most the end of time. t is negative in a test whose fake
// time begins before start.
func later(t, d time.Duration) time.Duration { return t + min(d, math.MaxInt64-max(0, t)) }
