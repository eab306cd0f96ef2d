package queue

import (
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	defaultLen   = 100_000
	maxTolerance = 100 * time.Millisecond // the bucket forgets a booking whose time passed longer ago
)

// Config is optional: its zero value works.
type Config struct {
	// MaxLen is the largest number of calls that wait. The queue refuses one more with an
	// [*outbound.ThrottledError] that is [ErrFull]. 0: 100 000, which take some 300 MB with
	// their goroutines.
	MaxLen int
	// MaxWait is the longest that a call waits. The queue refuses a call that would have to wait
	// longer: with one limit immediately, else after MaxWait at the latest. With a store that is
	// far away a shorter MaxWait counts as two trips and a reply's way back. If MaxWait is zero,
	// only the deadline of the call's ctx bounds the wait, and a call without one waits for a day
	// at most: see [ErrFar].
	MaxWait time.Duration
	// Tolerance is how late a call may leave after its place. A later one gives the place
	// back and books anew, so that a process that was paused does not let all calls go
	// together that came due meanwhile. Up to LeakRate*Tolerance units above a leaky limit may
	// leave by it, and a process whose timers are later loses throughput (see Stats.Late).
	// At most 100 ms, and with outbound.Window or outbound.FixedWindow more than 5 ms counts as
	// 5 ms, because a burst that leaves late could double what a window sees. 0: 5 ms with these
	// and with limits made by outbound.Per and its kin; else a tenth of the time that a unit
	// takes to leak, at least 5 ms and at most 50 ms.
	Tolerance time.Duration
}

func (c Config) check() error {
	switch {
	case c.MaxLen < 0:
		return fmt.Errorf("queue: MaxLen %d is negative: %w", c.MaxLen, outbound.ErrInvalidLimit)
	case c.MaxWait < 0:
		return fmt.Errorf("queue: MaxWait %v is negative: %w", c.MaxWait, outbound.ErrInvalidLimit)
	case c.Tolerance < 0 || c.Tolerance > maxTolerance:
		return fmt.Errorf("queue: Tolerance %v is not between 0 and %v: %w", c.Tolerance, maxTolerance, outbound.ErrInvalidLimit)
	}
	return nil
}
