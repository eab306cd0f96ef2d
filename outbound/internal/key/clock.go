package key

import (
	"math"
	"time"
)

// Start is the zero of this process's monotonic clock, which does not step.
var Start = time.Now()

// Never marks a time as long past, or unknown.
const Never = math.MinInt64 / 2

// MinReplyAge is how long a process relies on a reply from a store. The longer it does, the more
// of its calls leave in a hold. If a request normally takes longer, a reply counts for that long,
// up to store.MaxReplyAge. One request is in progress at a time, and a process without a recent
// reply could use only a part of its reservations.
const MinReplyAge = 25 * time.Millisecond

// Forever is the longest wait.
const Forever = time.Duration(math.MaxInt64)

// Now returns the time since Start.
func Now() time.Duration { return time.Since(Start) }

// Later returns t + d, at most the end of time. t may be negative: a clock's zero is anywhere.
func Later(t, d time.Duration) time.Duration {
	if d > math.MaxInt64-max(0, t) {
		return math.MaxInt64
	}
	return t + d
}
