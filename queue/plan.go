package queue

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The queue books reservations ahead for the calls at its head. Two marks say when: it books when a
// call has no reservation and the last reservation is due within the low mark, and then books
// reservations that are due within the high mark. With one mark every call would cost a request.
// Booking only when the call before has left would lose the timers' lateness each time.
const (
	low      = 5 * time.Millisecond  // the low mark, without the time of a request
	span     = 10 * time.Millisecond // from the low mark to the high one
	maxBatch = 4096                  // calls in one request

	// slotCheck is how often the queue asks while its first call waits for a slot. A permit
	// may have been dropped without Done.
	slotCheck = time.Second

	// newsCheck is how often the queue asks a store while its first reservation is far away.
	// Another process may have changed the limits or ended a hold.
	newsCheck = 10 * time.Second

	// mostWasted is how many requests in a row may bring no reservation in time before the queue
	// pauses between them. Fewer pause it enough by themselves.
	mostWasted = 3

	// retry is how long the queue pauses at least if a calendar books no further ahead, or until a
	// call can leave if that is sooner.
	retry = 100 * time.Millisecond

	// farthest is how long a call waits without a MaxWait and a deadline. If some fault made a level
	// wrong, the queue would block for years.
	farthest = 24 * time.Hour

	// rounding is how much later than its deadline a call may leave. Stores round waits up, some
	// to the microsecond, and each reservation counts from the one before.
	rounding = 10 * time.Microsecond

	forever = time.Duration(math.MaxInt64)
)

// head is what the first call without a reservation waits for. The zero value: it is booked with
// the next request.
type head struct {
	until   time.Time                // book nothing before
	soonest time.Time                // calls without a reservation leave no sooner, or zero
	full    *outbound.ThrottledError // the bucket's refusal, while it waits for a slot, or nil
}

// tolerance is how late a call may leave.
func (q *Queue) tolerance() time.Duration { return q.clock.Tolerance(q.config.Tolerance) }

// dueIn is how long until the reservation is due.
func (q *Queue) dueIn(t outbound.Ticket, now time.Time) time.Duration { return q.clock.Due(t).Sub(now) }

// firstIn is how long until the first call leaves, as [Stats.NextIn] has it.
func (q *Queue) firstIn(now time.Time) time.Duration {
	if t := q.line.tickets; len(t) > 0 {
		return max(1, q.dueIn(t[0], now))
	}
	return max(0, q.head.soonest.Sub(now))
}

// early is how long until the last reservation is due within the low mark. It is 0 or less if it
// is, or if there is no reservation.
func (q *Queue) early(now time.Time) (in time.Duration) {
	if n := len(q.line.tickets); n > 0 {
		in = q.dueIn(q.line.tickets[n-1], now) - q.requests.lowMark()
	}
	return in
}

// toBook decides what to book, and fills in the booking. It returns the first call to book for, or
// nil if there is nothing to book.
func (q *Queue) toBook(now time.Time) (first *waiter) {
	k, l := &q.booking, &q.line
	k.Costs, k.Move = k.Costs[:0], outbound.Ticket{}
	early := q.early(now)
	switch {
	case q.news > 0 && len(l.tickets) == 1 && early > 0 && k.Headroom == 0:
		// Returned units may bring the only reservation nearer.
		first, k.Move = l.end.next, l.tickets[0]
		k.Costs = append(k.Costs, first.cost)
	// If there is a request now anyway, the next may be too late.
	case l.unbooked == &l.end, now.Before(q.bookAt(now)), early > q.requests.wayBack, early > 0 && q.dueNext(now) > 0:
		return nil
	default:
		first = l.unbooked
		most := min(maxBatch, max(64+q.granted, int(k.Bid.Share)))
		if q.shared && q.requests.mean == 0 {
			most = 1 // the store may be far away, and the reservation lost for that
		}
		w := first
		for ; w != &l.end && len(k.Costs) < most; w = w.next {
			k.Costs = append(k.Costs, w.cost)
		}
		k.Bid.Last = w == &l.end
	}
	k.Wait, k.Horizon, k.After = within(q.expires(first), now), q.requests.lowMark()+span+q.requests.wayBack, q.requests.wayBack
	if q.wasted > 1 && q.shared { // the store reports too short a latency; a whole request is longer
		k.After = max(k.After, q.requests.mean)
	}
	// By Claim, processes with a backlog have equal shares. Without it those close to the store
	// would have most of a busy bucket. One call is no backlog.
	if k.Claim = cmp.Or(k.Claim, math.Inf(1)); len(k.Costs) == 1 || k.Headroom > 0 {
		k.Claim = 0
	}
	return first
}

// bookAt is when the queue may book for the first call without a reservation.
func (q *Queue) bookAt(now time.Time) time.Time {
	if q.givesWay() {
		return now.Add(farthest)
	}
	return latest(q.head.until, q.pause)
}

// dueNext is how long until the first reservation is due, or until the queue must read the clock
// again for a later reservation. With a store that is far away, that is rarely the first
// reservation of all. While the first reservation is far away, the queue asks a store for
// changes; a bucket in this process reports them by itself.
func (q *Queue) dueNext(now time.Time) time.Duration {
	t := q.line.tickets
	if len(t) == 0 {
		return forever
	}
	in := q.dueIn(t[0], now)
	if i := sort.Search(len(t), func(i int) bool { return q.clock.Stale(t[i]) }); i < len(t) {
		in = min(in, max(q.dueIn(t[i], now)-q.requests.lowMark(), q.pause.Sub(now)))
	}
	if q.shared {
		in = min(in, q.requests.ended.Add(newsCheck).Sub(now))
	}
	return in
}

// nextIn is how long until the queue needs a request, or a call without a reservation gives up.
func (q *Queue) nextIn(now time.Time) time.Duration {
	l := &q.line
	if q.news > 0 || len(l.unused) > 0 {
		return 0
	}
	next := q.dueNext(now)
	if w := l.unbooked; w != &l.end { // calls behind it have later deadlines, or a ctx that ends then
		next = min(next, q.expires(w).Sub(now), max(q.bookAt(now).Sub(now), q.early(now)))
	}
	return next
}

// bookableAt is when the queue tries again to book a reservation for w, which can leave after so
// long. A calendar books it only after its period, if w waits for the one after the next, and a
// fixed window after its end.
func (q *Queue) bookableAt(w *waiter, after time.Duration, now time.Time) time.Time {
	at := now.Add(newsCheck)   // another process may have changed the limits
	if q.config.Headroom > 0 { // calls leave when the bucket is asked, and not before
		return now.Add(min(newsCheck, after))
	}
	if q.booking.Bid.Again > 0 {
		return now.Add(after)
	}
	if q.clock.Known() {
		if opens, _, _ := q.clock.Earliest(&w.cost, new(outbound.Cost)); opens.Before(at) {
			at = opens
		}
	}
	return latest(at, now.Add(min(retry, after)))
}

// within is the longest wait that ends by the deadline.
func within(deadline, now time.Time) time.Duration {
	return min(max(0, deadline.Sub(now)), forever-rounding) + rounding
}

// known reports whether the clock counts the calls in line only.
func (q *Queue) known() bool { return q.clock.Known() && len(q.line.unused) == 0 }

// current reports whether a call may be refused by the clock. Until a request has ended the clock
// still counts the reservations that it returns, and other returned units.
func (q *Queue) current() bool { return q.known() && q.news == 0 }

// admitLocked puts a new call in line, or returns why it must not wait.
func (q *Queue) admitLocked(w *waiter) error {
	if q.closed {
		return q.closedError()
	}
	for i := range w.cost {
		if n := w.cost[i]; !(n >= 0 && n <= math.MaxFloat64) && n != outbound.Free {
			return &outbound.CostError{Key: q.bucket.Key(), Cost: w.cost, Err: outbound.ErrInvalid}
		}
	}
	l := &q.line
	judged, asks := q.current() && l.uncounted == &l.end, false
	if judged && !q.surely(w) {
		if err := q.late(w, start.Add(w.came)); err != nil {
			return err
		}
		asks = !q.current()
	}
	if l.n >= q.config.MaxLen {
		w.err = ErrFull
		at, _ := q.earliest(&w.cost)
		return q.throttled(w, at, start.Add(w.came))
	}
	w.onlyTrip = q.shared && l.n == 0
	if l.n == 0 && q.givesWay() {
		q.news++ // nothing is booked yet, and only the bucket's reply says which calls would be too late
	}
	if l.add(w, judged && !asks); l.unbooked == w || asks {
		q.setTimerLocked(start.Add(w.came))
	}
	return nil
}

// surely finds out whether a call behind all that the sums count certainly leaves in time. Only
// such calls count against later ones. Most are, and need no more of their small stacks.
func (q *Queue) surely(w *waiter) bool {
	// If all cost the same, one of w and the calls ahead leaves by the next reservation, though
	// perhaps not w itself.
	l, by := &q.line, q.expires(w).Add(rounding)
	ahead, alike := &l.all, !l.mixed && (l.unbooked == &l.end || l.unbooked.cost == w.cost)
	if alike {
		ahead = &l.sure
	}
	w.sure = q.config.Behind == nil && q.config.Headroom == 0 && !q.head.soonest.After(by) && q.clock.Surely(&w.cost, ahead, l.n, alike, by)
	return w.sure
}

// late returns the error of another call if it leaves too late. A cost that the limits of the last
// request cannot hold counts as news if the call came after it: the next request decides.
func (q *Queue) late(w *waiter, now time.Time) error {
	at, err := q.earliest(&w.cost)
	switch {
	case err != nil && q.shared && (w.seq == 0 || w.seq > q.asked):
		q.news++
		return nil
	case err == nil && at.After(q.expires(w).Add(rounding)):
		err = q.throttled(w, at, now)
	}
	return err
}

// earliest returns a lower bound of the time at which a call of this cost leaves behind all that
// the sums count, or zero while it is unknown.
func (q *Queue) earliest(c *outbound.Cost) (at time.Time, err error) {
	if q.known() {
		at, _, err = q.line.bound(&q.clock, c)
	}
	return latest(at, q.head.soonest), err
}

// expires is when a call gives up that has no reservation, or a later one. A MaxWait bounds the
// wait for capacity and not the store's distance.
func (q *Queue) expires(w *waiter) time.Time {
	switch {
	case w.err == context.DeadlineExceeded:
		return w.deadline.Add(-q.needs(w.deadline.Sub(start) - w.came))
	case q.requests.wayBack == 0:
		return w.deadline
	}
	return latest(w.deadline, start.Add(w.came+q.requests.least()))
}

// latest returns the latest of the times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// expired returns the error of a call that waits no longer. It is that of its ctx if the deadline
// has passed and there may be capacity: the call came after the last answered request was sent, and
// is the first.
func (q *Queue) expired(w *waiter, now time.Time) error {
	if w.err == context.DeadlineExceeded && !now.Before(w.deadline) && q.shared && q.head == (head{}) &&
		len(q.line.tickets) == 0 && !q.requests.sent.After(start.Add(w.came)) {
		return w.err
	}
	return q.throttled(w, time.Time{}, now)
}

// throttled returns the error of a call that could leave at earliest, which is zero if unknown.
func (q *Queue) throttled(w *waiter, earliest, now time.Time) *outbound.ThrottledError {
	e := &outbound.ThrottledError{Key: q.bucket.Key(), Err: w.err}
	if !earliest.IsZero() {
		e.RetryAfter = max(0, earliest.Sub(now))
	}
	if full := q.head.full; full != nil { // still true: the bucket reports when a call ends
		e.Limit, e.InProgress, e.Oldest = full.Limit, full.InProgress, full.Oldest+now.Sub(q.requests.ended)
	} else if q.known() {
		e.Held, e.Reason = q.clock.Held(now)
		_, e.Limit, _ = q.line.bound(&q.clock, &w.cost)
	}
	return e
}

// requestTimes is what the queue knows of its requests to the bucket.
type requestTimes struct {
	mean, deviation time.Duration // of the time that a request takes, or 0
	sent, ended     time.Time     // when the last one that has ended was sent, and ended
	// wayBack is how long a reply normally takes to arrive. A reservation that is due sooner has
	// passed when the queue learns of it. 0 means less than half the tolerance.
	wayBack time.Duration
}

// measure takes a request into account, as TCP does its round trips. A request that takes far too
// long counts less, or reservations would be booked too far ahead for a while. The first, which may
// open a connection, counts less as soon as there is another.
func (t *requestTimes) measure(took, wayBack, tolerance time.Duration) {
	t.wayBack = wayBack
	if wayBack <= tolerance/2 {
		t.wayBack = 0
	}
	if t.mean == 0 || took < t.mean/2 {
		t.mean, t.deviation = max(1, took), took/8
	}
	t.mean = max(t.mean, min(took, wayBack)) // a mean from an outage may be too short
	took = min(took, t.mean+max(4*t.deviation, span))
	t.deviation += ((took - t.mean).Abs() - t.deviation) / 4
	t.mean += (took - t.mean) / 8
}

// lowMark is how far ahead the last reservation is due at least, while calls wait for more.
func (t *requestTimes) lowMark() time.Duration { return low + t.mean + 4*t.deviation }

// least is how long a call may wait for the store, however short its MaxWait. It is two requests
// and the latency of a reply, because the first request may only measure the distance.
func (t *requestTimes) least() time.Duration { return 2*t.lowMark() + t.wayBack }
