package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// pump does what there is to do now, and sets the timer for what is next.
func (q *Queue) pump() {
	growStack()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.called = false
	if q.pumping {
		// Another goroutine is on a trip, and will set the timer after it.
		q.letGoLocked(time.Now())
		q.setTimerOnTripLocked()
		return
	}
	q.refuseExpiredLocked(time.Now())
	q.pumping = true
	for q.stepLocked() {
	}
	q.pumping = false
	q.setTimerLocked()
}

// stepLocked lets the calls go that are due, and makes a trip to the bucket if it needs one.
// It reports whether there may be more to do at once. During the trip it unlocks mu.
func (q *Queue) stepLocked() bool {
	now := time.Now()
	q.line.fit()
	q.letGoLocked(now)
	if q.line.late > 0 { // the calls have later places now
		q.refuseTooLateLocked(now)
	}
	if q.news > 0 {
		q.head.free() // a call may have ended during the trip that found no slot, or there may be other limits
	}
	first := q.toBook(now, &q.booking)
	needed, onlyNews := q.needsTrip(first, now)
	if !needed {
		return false
	}
	before, moving := q.clock, q.booking.Move != outbound.Ticket{}
	err := q.tripLocked()
	if first != nil {
		q.head.soonest, q.head.full = time.Time{}, nil
	}
	switch {
	case err == nil && moving && len(q.booking.Tickets) > 0 && len(q.line.tickets) > 0:
		q.line.tickets[0], q.line.moved = q.booking.Tickets[0], true
	case err == nil:
		for _, t := range q.booking.Tickets {
			q.bookLocked(t)
		}
	default:
		q.refusedLocked(first, onlyNews, moving, err)
	}
	q.line.fit() // calls may have cancelled during the trip
	n := len(q.booking.Tickets)
	if first != nil && !moving {
		granted := n
		if n == len(q.booking.Costs) {
			granted *= 2 // there may be room for many more
		}
		q.granted, q.booked = max(granted, q.granted/2), q.booking.Claim
	}
	nothing := first != nil && !first.gone && err == nil && !moving && n == 0
	clear(q.booking.Tickets) // so that the collector finds permits that are dropped
	if !q.clock.Same(&before) {
		q.line.void(&q.clock)
		q.line.uncount()
		q.refuseTooLateLocked(time.Now())
	}
	// As calls get places it becomes known which of the others go in time.
	if q.credit += looks; q.line.all != q.line.sure && q.credit > q.line.n {
		q.credit = 0
		q.line.uncount()
	}
	q.countLocked()
	admitted, late := q.stats.Admitted, q.stats.Late
	now = time.Now()
	q.letGoLocked(now)
	if first != nil {
		first.onlyTrip = false
	}
	if q.stats.Admitted == admitted && (nothing || q.stats.Late > late) {
		if q.head.wasted++; q.head.wasted > mostWasted {
			q.head.until = now.Add(span << min(q.head.wasted-mostWasted, 6))
		}
	}
	return true
}

// countLocked judges the calls that the sums leave out, refuses those that miss their deadlines and
// counts the others. It unlocks mu after each piece of a long line.
func (q *Queue) countLocked() {
	for l := &q.line; q.current(); q.line.fit() {
		now := time.Now()
		for n := 0; n < piece && l.uncounted != nil; n++ {
			w := l.uncounted
			if err := q.judge(w, now); err != nil {
				q.refuseLocked(w, err)
			} else {
				l.countNext()
			}
		}
		if l.uncounted == nil {
			return
		}
		q.letGoLocked(now)
		q.mu.Unlock()
		q.mu.Lock()
	}
}

// looks is how many calls the queue looks at again for each trip, on the average.
const looks = 32

// piece is how many calls the queue looks at before it lets others have its lock.
const piece = 2048

// tripLocked carries the booking out, gives the unused places back, and measures the trip. It
// unlocks mu meanwhile.
func (q *Queue) tripLocked() error {
	k := &q.booking
	k.Back, q.line.unused = q.line.unused, k.Back[:0]
	k.Lost, k.Late, q.line.late, q.line.latest = q.line.late, q.line.latest, 0, 0
	k.Clock = q.clock
	heard := q.news > 0
	if q.moving = k.Move; len(k.Back) > 0 {
		q.news++
	}
	news := q.news
	q.setTimerOnTripLocked()
	q.mu.Unlock()
	sent := time.Now()
	// The ctx of no call may end the trip, or the places that it books would be lost.
	err := q.bucket.Book(context.Background(), k)
	ended := time.Now()
	clear(k.Back)
	k.Move = outbound.Ticket{}
	q.mu.Lock()
	q.clock, q.moving, q.news, q.trips.ended = k.Clock, outbound.Ticket{}, q.news-news, ended
	if err == nil { // after an error there may have been no trip
		q.trips.measure(ended.Sub(sent), k.Clock.Back(), q.tolerance())
	}
	if heard && q.clock.Known() && !q.clock.Changed() {
		q.news = 0 // only the trip itself has changed something, and its reply counts that
	}
	return err
}

// refusedLocked answers the calls that the error of a trip concerns. first is the call that the
// trip was to book for; onlyNews says that no call needed the trip, and moving that it was to move
// the only place.
func (q *Queue) refusedLocked(first *waiter, onlyNews, moving bool, err error) {
	var full *outbound.ThrottledError
	var cost *outbound.CostError
	switch {
	case errors.As(err, &full) && full.RetryAfter == 0:
		q.head.full, q.head.until = full, time.Now().Add(slotCheck) // nobody knows when a call in progress ends
	case full == nil && !errors.As(err, &cost): // the store has failed
		if moving {
			q.line.forget() // others may have the place as it was, if the store has moved it and the reply is lost
		}
		switch {
		case first != nil && !first.gone && q.clock.Lacks(&first.cost):
			q.refuseLocked(first, err) // the others have room in the share
		case !onlyNews:
			q.failLocked(err)
		}
	case first == nil || first.gone:
	case full != nil && full.RetryAfter < q.booking.Wait:
		// It can make it, but nobody books so far ahead yet: in a calendar only when this period is
		// over, and in a fixed window when all of it comes back.
		now := time.Now()
		q.head.soonest, q.head.until = now.Add(full.RetryAfter), q.bookableAt(first, full.RetryAfter, now)
		q.line.uncount()
	default:
		q.refuseLocked(first, first.refusedBy(err))
	}
}

// letGoLocked lets the calls go whose places are due.
func (q *Queue) letGoLocked(now time.Time) {
	l, tolerance := &q.line, q.tolerance()
	for t, ok := q.place(); ok; t, ok = q.place() {
		ready, late := q.clock.Ready(t, now)
		if !ready {
			return // it is not due, or needs a trip
		}
		l.tickets[0], l.tickets = outbound.Ticket{}, l.tickets[1:] // to move the rest up would take longer than all else
		w := l.first
		if w == nil || late > tolerance {
			l.unused = append(l.unused, t)
			if w != nil { // others have booked the places since, and would go together with this call
				q.stats.Late++
				l.late, l.latest = l.late+1, max(l.latest, late)
				l.onePlaceLess()
			}
			continue
		}
		q.stats.Admitted++
		if !w.onlyTrip {
			q.stats.Waited++
		}
		if q.head.wasted = 0; q.head.full == nil && q.head.soonest.IsZero() {
			q.head = head{}
		}
		w.ticket = t
		l.unlink(w)
		close(w.ready)
	}
}

// refuseExpiredLocked refuses the calls whose deadlines have passed while they had no place.
func (q *Queue) refuseExpiredLocked(now time.Time) {
	for w := q.line.unplaced; w != nil && !q.expires(w).After(now); w = q.line.unplaced {
		q.refuseLocked(w, q.throttled(w, time.Time{}, now))
	}
}

// bookLocked gives a place to the first call without one that it is not too late for, and refuses
// those before.
func (q *Queue) bookLocked(t outbound.Ticket) {
	l, at := &q.line, q.clock.Due(t)
	for w := l.unplaced; w != nil && w.cost == t.Cost() && at.After(q.expires(w).Add(rounding)); w = l.unplaced {
		q.refuseLocked(w, q.throttled(w, at, time.Now()))
	}
	l.book(t)
}

// refuseTooLateLocked refuses the calls that miss their deadlines at their places. A booking has
// the deadline of its first call, and books places far behind that where the queue catches up with
// other workers. And where a place was lost, each call has that of the next. It is not for a trip
// that is under way.
func (q *Queue) refuseTooLateLocked(now time.Time) {
	l := &q.line
	i := 0
	for w := l.first; w != nil && i < len(l.tickets) && l.tickets[i].Cost() == w.cost; {
		next := w.next
		if at := q.clock.Due(l.tickets[i]); at.After(q.expires(w).Add(rounding)) {
			q.refuseLocked(w, q.throttled(w, at, now)) // the next call gets its place
		} else {
			i++
		}
		w = next
	}
	l.fit()
}

// failLocked refuses the calls without a place, and those that need another trip before they
// go, with the store's error. Their places are lost.
func (q *Queue) failLocked(err error) {
	now := time.Now()
	q.letGoLocked(now) // these need no further trip
	for q.line.unplaced != nil {
		q.refuseLocked(q.line.unplaced, err)
	}
	w := q.line.first
	q.line.tickets = slices.DeleteFunc(q.line.tickets, func(t outbound.Ticket) bool {
		v := w
		if v == nil {
			return false
		}
		w = v.next
		if !q.failsWith(t, now) {
			return false
		}
		q.refuseLocked(v, err)
		return true
	})
}

// refuseLocked takes a call out of the line and answers it with err.
func (q *Queue) refuseLocked(w *waiter, err error) {
	q.stats.Refused++
	q.removeLocked(w)
	w.err = err
	close(w.ready)
}

// setTimerLocked sets the timer for the next thing to do, while nobody is pumping.
func (q *Queue) setTimerLocked() {
	if q.line.n == 0 && len(q.line.tickets)+len(q.line.unused) == 0 {
		q.restLocked()
		return
	}
	if q.ignore == nil {
		q.ignore = q.bucket.Waiting(q.onChange)
		if q.clock.Known() && q.clock.Changed() { // since the trip, and before the queue listened
			q.news++
			q.head.free()
		}
	}
	q.pumpInLocked(q.nextIn(time.Now()))
}

// setTimerOnTripLocked sets the timer for the call that may go during the trip.
func (q *Queue) setTimerOnTripLocked() {
	if in, ok := q.nextOnTrip(time.Now()); ok && q.ignore != nil {
		q.pumpInLocked(in)
	}
}

// pumpInLocked makes pump run after d, and not before.
//
// If d is 0 a goroutine calls it, and not a timer. Our users test in testing/synctest
// bubbles, where timers of no time in several goroutines crash the program under the race
// detector, up to Go 1.26 at least.
func (q *Queue) pumpInLocked(d time.Duration) {
	switch {
	case d > 0 && q.timer == nil:
		q.timer = time.AfterFunc(d, q.pump)
		return
	case d > 0:
		q.timer.Reset(d)
		return
	case q.timer != nil:
		q.timer.Stop()
	}
	if !q.called {
		q.called = true
		go q.pump()
	}
}

// restLocked stops the timer and stops listening to the bucket, because nobody waits. It
// forgets what will be out of date when the next call comes.
func (q *Queue) restLocked() {
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.ignore != nil {
		q.ignore()
	}
	q.timer, q.ignore = nil, nil
	q.news, q.head, q.clock, q.booked = 0, head{}, outbound.Clock{}, 0
	if q.empty != nil {
		close(q.empty)
		q.empty = nil
	}
}

// onChange hears from the bucket that something has changed.
func (q *Queue) onChange() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.news++
	q.head.free()
	if !q.pumping && q.ignore != nil {
		q.pumpInLocked(0)
	}
}

// growStack makes room on the stack for all that a step calls. A timer's goroutine
// begins with a small stack, which would move three times on the way down: that
// takes as long as half the step. Here it moves once, while hardly anything is on it.
//
//go:noinline
func growStack() {
	var room [12 << 10]byte
	touch(&room)
}

// touch keeps the compiler from leaving the room out.
//
//go:noinline
func touch(room *[12 << 10]byte) { room[0] = 1 }
