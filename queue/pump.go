package queue

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// pump does what there is to do now, and sets the timer for what is next.
func (q *Queue) pump() {
	growStack(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.called = false
	if q.pumping { // another goroutine is on a request, and will set the timer after it
		now := time.Now()
		q.letGoLocked(now)
		q.setTimerLocked(now)
		return
	}
	q.pumping = true
	for q.stepLocked() {
	}
	q.pumping = false
	q.setTimerLocked(time.Now())
}

// stepLocked lets due calls go, refuses those that have waited for too long, judges some again, and
// makes a request to the bucket if necessary. It reports whether there may be more to do now.
// During the request, and after each piece of a long line, it unlocks mu.
func (q *Queue) stepLocked() bool {
	now, l, k := time.Now(), &q.line, &q.booking
	q.letGoLocked(now)
	for w := l.unbooked; w != &l.end && !q.expires(w).After(now); w = l.unbooked {
		q.refuseLocked(w, q.expired(w, now))
	}
	if q.countLocked(now) {
		q.mu.Unlock()
		q.mu.Lock()
		return true
	}
	if q.news > 0 {
		q.head = head{} // a call may have ended during the request that found no slot, or there may be other limits
	}
	if q.nextIn(now) > 0 {
		return false
	}
	first, before := q.toBook(now), q.clock
	moving := k.Move != outbound.Ticket{}
	err := q.tripLocked(now)
	tickets, nothing := k.Tickets, false
	if first != nil {
		q.head = head{}
	}
	switch {
	case err != nil:
		q.refusedLocked(first, moving, err)
	case moving && len(tickets) > 0:
		l.takeTickets() // another reservation replaces it
	case first != nil && !moving:
		q.granted = max(3*len(tickets), q.granted/2)
		nothing = len(tickets) == 0 && !first.gone
		if err == nil && k.Bid.Again > 0 {
			q.head.until = q.requests.ended.Add(k.Bid.Again)
		}
	}
	if len(l.unused) > l.late { // calls were cancelled, and their units would return too late for the calls behind
		l.unused, tickets = append(l.unused, tickets...), nil
	}
	if !q.clock.Same(&before) {
		tickets = append(l.takeTickets(), tickets...)
		l.uncount()
	}
	q.giveLocked(tickets)
	clear(k.Tickets) // so that the collector finds permits that are dropped
	// As calls get reservations it becomes known which later calls leave in time.
	if q.credit += looks; l.all != l.sure && q.credit > l.n {
		q.credit = 0
		l.uncount()
	}
	admitted, late := q.stats.Admitted, q.stats.Late
	now = time.Now()
	q.letGoLocked(now)
	if first != nil {
		first.onlyTrip = false
	}
	if q.stats.Admitted == admitted && (nothing || q.stats.Late > late) {
		if q.wasted++; q.wasted > mostWasted {
			q.pause = now.Add(span << min(q.wasted-mostWasted, 6))
		}
	}
	return true
}

// countLocked judges calls that the sums leave out, refuses those that miss their deadlines and
// counts the rest. It reports whether there were any. A piece of the line is enough at a time.
func (q *Queue) countLocked(now time.Time) (some bool) {
	for n, l := 0, &q.line; n < piece && l.uncounted != &l.end && q.current(); n++ {
		some = true
		if w := l.uncounted; !q.surely(w) {
			if err := q.late(w, now); err != nil {
				q.refuseLocked(w, err)
				continue
			}
		}
		if q.current() {
			l.countNext()
		}
	}
	return some
}

// looks is how many calls the queue looks at again for each request, on average, and piece how many
// before it frees its lock.
const looks, piece = 32, 2048

// tripLocked carries the request out, returns the unused reservations, and measures the request. It
// unlocks mu meanwhile. now is when calls were let go.
func (q *Queue) tripLocked(now time.Time) error {
	k := &q.booking
	k.Unused, q.line.unused = q.line.unused, k.Unused[:0]
	k.Lost, k.Late, q.line.late, q.line.lost, q.line.latest = q.line.lost, q.line.latest, 0, 0, 0
	k.Clock = q.clock
	noticed := q.news > 0
	if len(k.Unused) > 0 {
		q.news++
	}
	news := q.news
	q.asked = q.line.seq
	q.setTimerLocked(now)
	q.mu.Unlock()
	sent := time.Now()
	// The ctx of no call may end the request, or the reservations that it books would be lost.
	err := q.bucket.Book(context.Background(), k)
	ended := time.Now()
	clear(k.Unused)
	q.mu.Lock()
	k.Move = outbound.Ticket{}
	q.clock, q.news, q.requests.sent, q.requests.ended = k.Clock, q.news-news, sent, ended
	if err == nil { // after an error there may have been no request
		q.requests.measure(ended.Sub(sent), k.Clock.Latency(), q.tolerance())
	}
	if noticed && q.clock.Known() && !q.clock.Changed() {
		q.news = 0 // only the request itself has changed something, and its reply counts that
	}
	return err
}

// refusedLocked answers the calls that the error of a request concerns. first is the call that the
// request was to book for; moving says that it was to move the only reservation.
func (q *Queue) refusedLocked(first *waiter, moving bool, err error) {
	full, throttled := errors.AsType[*outbound.ThrottledError](err)
	_, invalid := errors.AsType[*outbound.CostError](err)
	now := time.Now()
	switch {
	case throttled && full.RetryAfter == 0:
		q.head = head{full: full, until: now.Add(slotCheck)} // the end of a call in progress is unknown
	case !throttled && !invalid:
		if moving {
			q.line.takeTickets() // another call may have it, if the store has moved it and the reply is lost
		}
		q.failLocked(first, err)
	case first == nil || first.gone:
	case throttled && full.RetryAfter < q.booking.Wait:
		// The call can leave in time, but can be booked only later: in a calendar after this
		// period, and in a fixed window after its end.
		q.head = head{soonest: now.Add(full.RetryAfter), until: q.bookableAt(first, full.RetryAfter, now)}
		q.line.uncount()
	default:
		if throttled {
			full.Err = first.err // why it does not wait longer
		}
		q.refuseLocked(first, err)
	}
}

// letGoLocked lets the calls go whose reservations are due.
func (q *Queue) letGoLocked(now time.Time) {
	l, tolerance, lost := &q.line, q.tolerance(), false
	for len(l.tickets) > 0 && l.tickets[0] != q.booking.Move {
		t, w := l.tickets[0], l.end.next
		ready, late := q.clock.Ready(t, now)
		passed := late > tolerance && now.Before(q.clock.HeldUntil()) // it would be late when the hold ends, too
		if !ready && !passed || lost && t.Cost() != w.cost {
			break // it is not due, or needs a request
		}
		l.tickets[0], l.tickets = outbound.Ticket{}, l.tickets[1:] // to move the rest up would take longer than all else
		if late > tolerance {
			lost = true // other calls have booked its time since, and would leave with this call
			l.unused = append(l.unused, t)
			if l.late++; now.Sub(q.clock.HeldUntil()) > tolerance { // else a pause has passed it
				q.stats.Late++
				l.lost, l.latest = l.lost+1, max(l.latest, late)
			}
			l.unbookLast()
			continue
		}
		q.stats.Admitted++
		if !w.onlyTrip {
			q.stats.Waited++
		}
		q.wasted, q.pause = 0, time.Time{}
		w.ticket, w.err = t, nil
		l.unlink(w)
		close(w.ready)
	}
	if lost {
		q.giveLocked(l.takeTickets()) // the calls have later reservations now
	}
}

// giveLocked gives reservations, in this order, to the calls without one. It refuses calls that
// would miss their deadlines: a booking has the deadline of its first call only. A reservation
// becomes unused if the clock does not hold it any more, if no call is left, or if it was booked
// for another cost. Then all behind it become unused, too, because the returned units would be too
// late for their calls.
func (q *Queue) giveLocked(tickets []outbound.Ticket) {
	l := &q.line
	for i, t := range tickets {
		if !q.clock.Holds(t) {
			l.unused = append(l.unused, t)
			continue
		}
		at := q.clock.Due(t)
		for w := l.unbooked; w != &l.end && w.cost == t.Cost() && at.After(q.expires(w).Add(rounding)); w = l.unbooked {
			q.refuseLocked(w, q.throttled(w, at, time.Now()))
		}
		if l.unbooked == &l.end || l.unbooked.cost != t.Cost() {
			l.unused = append(l.unused, tickets[i:]...)
			return
		}
		l.tickets = append(l.tickets, t)
		l.leave(l.unbooked, true)
	}
}

// failLocked refuses the calls with the store's error that are due and need a request to go. Their
// reservations are lost. If the request was to book for first, it refuses the calls without a
// reservation as well. It refuses only first, if the rest fits into the share of the limits that
// counts meanwhile.
func (q *Queue) failLocked(first *waiter, err error) {
	l, now := &q.line, time.Now()
	if first != nil && !first.gone && q.clock.Lacks(&first.cost) {
		q.refuseLocked(first, err)
		return
	}
	q.letGoLocked(now) // these need no further request
	for first != nil && l.unbooked != &l.end {
		q.refuseLocked(l.unbooked, err)
	}
	for len(l.tickets) > 0 && !q.clock.Due(l.tickets[0]).After(now) {
		l.tickets = l.tickets[1:]
		l.unbookLast()
		q.refuseLocked(l.end.next, err)
	}
	q.pause = now.Add(2 * span)
}

// setTimerLocked sets the timer for the next thing to do: during a request, to let a call go. A
// reservation that was due at now needs what the request brings.
func (q *Queue) setTimerLocked(now time.Time) {
	switch t := q.line.tickets; {
	case q.pumping:
		if len(t) > 0 && t[0] != q.booking.Move && q.clock.Due(t[0]).After(now) {
			q.pumpInLocked(q.dueIn(t[0], now))
		}
	case q.idle():
		q.restLocked()
	default:
		if q.ignore == nil {
			q.ignore = q.bucket.Waiting(q.onChange)
		}
		q.pumpInLocked(q.nextIn(now))
	}
}

// pumpInLocked makes pump run after d.
//
// If d is 0 a goroutine calls it, and not a timer. Our users test in testing/synctest
// bubbles, where timers of no time in several goroutines crash the program under the race
// detector, up to Go 1.26 at least.
func (q *Queue) pumpInLocked(d time.Duration) {
	switch {
	case d <= 0 && !q.called:
		q.called = true
		go q.pump()
	case d <= 0:
	case q.timer == nil:
		q.timer = time.AfterFunc(d, q.pump)
	default:
		q.timer.Reset(d)
	}
}

// restLocked stops the timer and unregisters from the bucket, because no call waits. It forgets
// what will be out of date when the next call comes.
func (q *Queue) restLocked() {
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.ignore != nil {
		q.ignore()
	}
	q.timer, q.ignore = nil, nil
	q.news, q.head, q.wasted, q.pause, q.clock, q.booking.Claim = 0, head{}, 0, time.Time{}, outbound.Clock{}, 0
	q.next.wake()
	if q.empty != nil {
		close(q.empty)
		q.empty = nil
	}
}

// onChange is called by the bucket after a change.
func (q *Queue) onChange() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.news++
	q.setTimerLocked(time.Now())
}

// growStack makes room on the stack for all that a step calls. A timer's goroutine
// begins with a small stack, which would move three times on the way down: that
// takes as long as half the step. Here it moves once, while hardly anything is on it.
//
//go:noinline
func growStack(i int) byte {
	var room [12 << 10]byte
	return room[i]
}
