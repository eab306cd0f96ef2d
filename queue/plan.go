package queue

import (
	"math"
	"sort"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The queue books places ahead for the calls at its head. Two marks say when: it books
// when a call has no place and the last place is due within the low mark, and then books
// places that are due within the high mark. With one mark every call would cost a trip.
// Booking only when the call before has left would lose the timers' lateness each time.
const (
	low      = 5 * time.Millisecond  // the low mark, without the time of a trip
	span     = 10 * time.Millisecond // from the low mark to the high one
	maxBatch = 4096                  // calls in one trip

	// slotCheck is how often the queue asks while its first call waits for a slot. A permit
	// may have been dropped without Done.
	slotCheck = time.Second

	// newsCheck is how often the queue asks a store while its first place is far away.
	// Another worker may have changed the limits or ended a hold.
	newsCheck = 10 * time.Second

	// mostWasted is how many trips in a row may bring no place in time before the queue pauses
	// between them. Fewer pause it enough by themselves.
	mostWasted = 3

	// retry is how long the queue pauses at least if a calendar books no further ahead, or until a
	// call can go if that is sooner.
	retry = 100 * time.Millisecond

	// farthest is how long a call waits if neither MaxWait nor its ctx says it. If some fault made
	// a level wrong, the queue would stand still for years.
	farthest = 24 * time.Hour

	// rounding is how much later than its deadline a call may go. Stores round waits up, some
	// to the microsecond, and each place counts from the one before.
	rounding = 10 * time.Microsecond

	forever = time.Duration(math.MaxInt64)
)

// head is what the first call without a place waits for. The zero value: it is booked with the next
// trip.
type head struct {
	until   time.Time                // book nothing before
	soonest time.Time                // calls without a place go no sooner, although none may be booked for then yet; zero: they may
	full    *outbound.ThrottledError // the bucket's refusal, while it waits for a slot; nil: it does not
}

// tolerance is how late a call may leave.
func (q *Queue) tolerance() time.Duration { return q.clock.Tolerance(q.config.Tolerance) }

// dueIn is how long until the place is due.
func (q *Queue) dueIn(t outbound.Ticket, now time.Time) time.Duration { return q.clock.Due(t).Sub(now) }

// firstIn is how long until the first call goes, as [Stats.NextIn] has it.
func (q *Queue) firstIn(now time.Time) time.Duration {
	switch {
	case len(q.line.tickets) > 0:
		return max(0, q.dueIn(q.line.tickets[0], now))
	case q.head.soonest.After(now):
		return q.head.soonest.Sub(now)
	}
	return -1
}

// lastIn is how long until the last place is due; 0: there is none.
func (q *Queue) lastIn(now time.Time) time.Duration {
	if n := len(q.line.tickets); n > 0 {
		return q.dueIn(q.line.tickets[n-1], now)
	}
	return 0
}

// toBook decides what to book, and fills in the booking. It returns the first call to book for, or
// nil if there is nothing to book.
func (q *Queue) toBook(now time.Time) (first *waiter) {
	k, l := &q.booking, &q.line
	k.Costs, k.Move = k.Costs[:0], outbound.Ticket{}
	lowMark, last := q.trips.lowMark(), q.lastIn(now)
	switch {
	case q.news > 0 && len(l.tickets) == 1 && last > lowMark:
		// Units may have come back, and bring the only place nearer.
		first, k.Move = l.end.next, l.tickets[0]
		k.Costs = append(k.Costs, first.cost)
	case l.unplaced == &l.end || now.Before(q.bookAt()):
		return nil
	case last > lowMark && (last > lowMark+q.trips.wayBack || q.hearIn(now) > 0):
		// It is too early. If there is a trip now anyway, though, the next may be too late.
		return nil
	default:
		first = l.unplaced
		most := min(maxBatch, 16+q.granted)
		if q.shared && q.trips.mean == 0 {
			most = 1 // the store may be far away, and the place go back for that
		}
		for w := first; w != &l.end && len(k.Costs) < most; w = w.next {
			k.Costs = append(k.Costs, w.cost)
		}
	}
	k.Wait, k.Horizon, k.After = within(q.expires(first), now), lowMark+span+q.trips.wayBack, q.trips.wayBack
	if q.wasted > 1 && q.shared { // the store tells too short a way back; a whole trip is longer
		k.After = max(k.After, q.trips.mean)
	}
	// By Claim, workers with a backlog have equal shares. Without it the workers close to the store
	// would have most of a busy bucket. One call is no backlog.
	switch {
	case len(k.Costs) == 1:
		k.Claim = 0
	case k.Claim == 0:
		k.Claim = math.Inf(1) // the backlog begins
	}
	return first
}

// bookAt is when the queue may book for the first call without a place.
func (q *Queue) bookAt() time.Time { return latest(q.head.until, q.pause) }

// hearIn is how long until the first place is due, or until the queue must hear the clock
// again because it will be too old when a later place is due. With a store that is far away
// the first place that needs that is hardly ever the first of all. While the first place is far
// away, the queue asks a store for news; a bucket in this process tells of changes by itself.
func (q *Queue) hearIn(now time.Time) time.Duration {
	t := q.line.tickets
	if len(t) == 0 {
		return forever
	}
	in := q.dueIn(t[0], now)
	if i := sort.Search(len(t), func(i int) bool { return q.clock.Stale(t[i]) }); i < len(t) {
		in = min(in, q.dueIn(t[i], now)-q.trips.lowMark())
	}
	if q.shared {
		in = min(in, q.trips.ended.Add(newsCheck).Sub(now))
	}
	return in
}

// nextIn is how long until the queue needs a trip, or a call without a place gives up.
func (q *Queue) nextIn(now time.Time) time.Duration {
	l := &q.line
	if q.news > 0 || len(l.unused) > 0 {
		return 0
	}
	next := q.hearIn(now)
	if w := l.unplaced; w != &l.end { // calls behind it have later deadlines, or a ctx that ends then
		next = min(next, q.expires(w).Sub(now), max(q.bookAt().Sub(now), q.lastIn(now)-q.trips.lowMark()))
	}
	return next
}

// failsWith reports whether a call with the place t fails when a trip fails, because it
// would need another one to go.
func (q *Queue) failsWith(t outbound.Ticket, now time.Time) bool {
	in := q.dueIn(t, now)
	return in <= q.trips.lowMark() && (in <= 0 || q.clock.Stale(t))
}

// bookableAt is when the queue tries again to book a place for w, which can go after so long: a
// calendar books it only when its period is over, if w waits for the one after the next, and a
// fixed window when all of it comes back.
func (q *Queue) bookableAt(w *waiter, after time.Duration, now time.Time) time.Time {
	soonest, at := now.Add(min(retry, after)), time.Time{}
	if q.clock.Known() {
		at, _, _ = q.clock.Earliest(&w.cost, new(outbound.Cost))
	}
	if news := now.Add(newsCheck); q.shared && at.After(news) {
		at = news // another worker may have changed the limits
	}
	return latest(soonest, at)
}

// within is the longest wait that ends by the deadline.
func within(deadline, now time.Time) time.Duration {
	return min(max(0, deadline.Sub(now)), forever-rounding) + rounding
}
