package queue

import (
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// maxTolerance is limited by the bucket, which forgets a booking whose time passed longer ago.
const defaultLen, maxTolerance = 100_000, 100 * time.Millisecond

// leastWeight and mostWeight are what a store takes: it keeps sums of weights.
const leastWeight, mostWeight = 1e-9, 1e9

// Config is optional: its zero value works.
type Config struct {
	// MaxLen is the largest number of waiting calls. The queue refuses one more with an
	// [*outbound.ThrottledError] that is [ErrFull]. If MaxLen is zero, it is 100,000: these take some
	// 300 MB with their goroutines.
	MaxLen int
	// MaxWait is the longest that a call waits. The queue refuses a call that would have to wait
	// longer: with one limit immediately, else after MaxWait at the latest. With a store that is
	// far away a shorter MaxWait counts as two requests and the latency of a reply. If MaxWait is
	// zero, only the deadline of the call's ctx bounds the wait, and a call without one waits for a
	// day at most: see [ErrFar].
	MaxWait time.Duration
	// CallTime is how long a call takes from its admission to its end. The queue keeps as much of
	// each ctx deadline free: a call that left later could not be answered in time. A call that finds
	// capacity leaves in any case. If CallTime is negative, a call may leave until its deadline. If
	// CallTime is zero, the queue learns it from calls with a deadline, as the time that 1 in 50
	// exceeds. After four slower calls it has become five times as long, and after some 200 faster
	// ones a fifth. Refusals and failures teach nothing. What is learnt takes at most 7/8 of the time
	// that a call came with, and counts for a minute after the last call. It costs 48 bytes for each
	// call that has waited, until its end.
	CallTime time.Duration
	// Tolerance is how late a call may use its reservation. A later call reserves again, so that a
	// process that was paused does not let all calls leave together that came due meanwhile. Up to
	// LeakRate*Tolerance units above a leaky limit may leave by it. A process whose timers are later
	// loses throughput: see [Stats].Late.
	//
	// Tolerance is at most 100 ms, and with [outbound.Window] or [outbound.FixedWindow] 5 ms at most,
	// because a burst that leaves late could double what a window counts. If Tolerance is zero, it is
	// 5 ms with these and with limits made by [outbound.Per], PerSecond and so on. Otherwise it is a
	// tenth of the time that a unit takes to leak, at least 5 ms and at most 50 ms.
	Tolerance time.Duration
	// Weight is the queue's share while calls wait in several queues around its bucket, in one or
	// more processes. A queue of weight 9 leaves a tenth to one of weight 1. If calls wait in one
	// queue only, it has the whole rate. Weight is from 1e-9 to 1e9. If it is zero, it is 1.
	// An [outbound.Window] or [outbound.Daily] frees many units at one time. Each queue gets its share
	// of these, within 10 % or 2 calls, and a queue with fewer calls gets all of them.
	Weight float64
	// Headroom is the fraction of each limit that this queue keeps free for other queues and calls,
	// from 0 to less than 1. With 0.2 around a Window of 100 its calls leave only while 20 units
	// remain after them. Calls of other queues, processes and programs then find capacity without a
	// wait. A burst of them with an InFlight in a store takes some requests for slots. It counts in
	// each limit that counts the call, and in the slots of an [outbound.InFlight]. It is rounded down
	// to whole units, so PerSecond(10), whose capacity is 1, keeps nothing free. A call that needs
	// more than the rest is an [*outbound.CostError]. The queue asks when its call can leave, and
	// reserves nothing before. So it ignores Weight, and several queues with a Headroom share the rest
	// by chance.
	Headroom float64
	// Behind is another queue of this process, such as that of users. While calls wait there, this
	// queue reserves no time: its calls wait up to MaxWait or their deadlines. A call that has a
	// reservation keeps it: one call below 50 calls per second, and those of about 15 ms above. The
	// further requests of jobs do not wait for the other queue. Early refusals count the calls of this
	// queue alone, and Explain those in front, too. If Behind is nil, the queue waits for no other.
	Behind *Queue
}

func (c Config) check() error {
	switch {
	case c.MaxLen < 0 || c.MaxWait < 0:
		return fmt.Errorf("queue: MaxLen %d or MaxWait %v is negative: %w", c.MaxLen, c.MaxWait, outbound.ErrInvalid)
	case c.Tolerance < 0 || c.Tolerance > maxTolerance:
		return fmt.Errorf("queue: Tolerance %v is not between 0 and %v: %w", c.Tolerance, maxTolerance, outbound.ErrInvalid)
	}
	if c.Weight != 0 && !(c.Weight >= leastWeight && c.Weight <= mostWeight) {
		return fmt.Errorf("queue: Weight %v is not from %v to %v: %w", c.Weight, leastWeight, mostWeight, outbound.ErrInvalid)
	}
	if !(c.Headroom >= 0 && c.Headroom < 1) {
		return fmt.Errorf("queue: Headroom %v is not from 0 to less than 1: %w", c.Headroom, outbound.ErrInvalid)
	}
	return nil
}
