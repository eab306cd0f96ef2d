package queue

import (
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	defaultLen   = 100_000
	maxTolerance = 100 * time.Millisecond // the bucket forgets a booking that is later
)

// Config is optional: its zero value works.
type Config struct {
	// MaxLen is the largest number of calls that wait. One more is refused
	// with an [*outbound.ThrottledError] that is [ErrFull]. 0: 100 000, which
	// with their goroutines take some 300 MB.
	MaxLen int
	// MaxWait is the longest that a call waits. One that would have to wait
	// longer is refused at once. 0: as long as its ctx allows; and if that has no
	// deadline, no place is booked that is more than a day away: see [ErrFar]. With a store that
	// is far away it is at least a trip and a reply's way back.
	MaxWait time.Duration
	// Tolerance is how late a call may leave after the time that was booked for
	// it; a later one gives its place back and books anew, so that a process
	// that was paused does not let go in a bunch what came due meanwhile.
	// Up to LeakRate*Tolerance units above the limit may leave by it, and a
	// process whose timers are later than it loses throughput (see Stats.Late).
	// At most 100 ms. 0: 5 ms with limits made by outbound.Per and its kin;
	// else a tenth of the time that a unit takes to leak, at least 5 ms and at
	// most 50 ms.
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
