package queue

import (
	"context"
	"errors"
	"runtime"
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
	q.refuseAllLocked(q.expired(time.Now()))
	q.noSlot = nil // ask again
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
	if q.lost { // the calls have later places now
		q.lost = false
		q.refuseTooLateLocked(len(q.line.tickets), now)
	}
	if q.changed {
		q.noSlot = nil // a call may have ended during the trip that found no slot
		if !q.soonest.IsZero() {
			q.soonest, q.pause = time.Time{}, time.Time{} // there may be other limits
		}
	}
	first := q.toBook(now, &q.booking)
	needed, onlyNews := q.needsTrip(first, now)
	if !needed {
		return false
	}
	before, moving := q.clock, q.booking.Move != outbound.Ticket{}
	if first != nil {
		q.soonest = time.Time{}
	}
	err := q.tripLocked()
	switch {
	case err == nil && moving && len(q.booking.Tickets) > 0 && len(q.line.tickets) > 0:
		q.line.tickets[0], q.line.moved = q.booking.Tickets[0], true
	case err == nil:
		for _, t := range q.booking.Tickets {
			q.line.book(t)
		}
	default:
		q.refusedLocked(first, onlyNews, moving, err)
	}
	if q.shared || !q.clock.Same(&before) {
		q.ahead = nil
	}
	q.line.fit() // calls may have cancelled during the trip
	if !q.clock.Same(&before) {
		q.line.void(&q.clock)
		q.unchecked = true
	}
	if q.unchecked && q.clock.Known() || err == nil && q.tells() { // checked only now, when the new places are in line
		q.checkLocked()
	}
	if first != nil && !moving {
		n := len(q.booking.Tickets)
		if n == len(q.booking.Costs) {
			n *= 2 // there may be room for many more
		}
		q.granted, q.booked = max(n, q.granted/2), q.booking.Claim
	}
	n := len(q.booking.Tickets)
	nothing := first != nil && !first.gone && err == nil && !moving && n == 0
	clear(q.booking.Tickets) // so that the collector finds permits that are dropped
	q.line.fit()             // calls may have cancelled during the trip
	if n > 1 {
		q.refuseTooLateLocked(n, time.Now())
	}
	admitted, late := q.stats.Admitted, q.stats.Late
	now = time.Now()
	q.letGoLocked(now)
	if first != nil {
		first.onlyTrip = false
	}
	if q.stats.Admitted == admitted && (nothing || q.stats.Late > late) {
		q.wasted++
		if d := pauseAfter(q.wasted); d > 0 {
			q.pause = now.Add(d)
		}
	}
	return true
}

// checkLocked refuses the calls that now miss their deadlines: all of them if unchecked is set, and else
// those that are untold. It unlocks mu after each piece of a long line. If calls cancel meanwhile it
// begins anew. If the bucket has told of a change, or places are to go back, the check begins anew after the
// trip that those need. Each time the pieces are larger, so that it ends however often that happens.
func (q *Queue) checkLocked() {
	all := q.unchecked
	q.unchecked = false
	for q.pieces = max(q.pieces, piece); ; q.pieces *= 2 {
		c := q.newCheck(all)
		for q.checking = c; !c.stale; {
			if q.refuseAllLocked(q.hopeless(c, q.pieces, time.Now())); c.next == nil {
				q.checking, q.pieces = nil, 0
				q.keep(c)
				return
			}
			q.setTimerOnTripLocked()
			q.mu.Unlock()
			runtime.Gosched()
			q.mu.Lock()
			q.line.fit() // calls may have cancelled
			if q.changed || len(q.line.unused) > 0 {
				q.checking, q.unchecked, q.pieces = nil, all, 2*q.pieces
				return
			}
			c.stale = c.stale || c.next.gone // it has gone, or the queue was closed
		}
	}
}

// tripLocked carries the booking out, gives the unused places back, and measures the trip. It
// unlocks mu meanwhile.
func (q *Queue) tripLocked() error {
	k := &q.booking
	k.Back, q.line.unused = q.line.unused, k.Back[:0]
	k.Lost, k.Late, q.line.late, q.line.latest = q.line.late, q.line.latest, 0, 0
	k.Clock = q.clock
	told := q.changed
	if q.returns = told || len(k.Back) > 0; q.returns {
		q.ahead = nil
	}
	q.changed, q.moving = false, k.Move
	q.setTimerOnTripLocked()
	q.mu.Unlock()
	sent := time.Now()
	// The ctx of no call may end the trip, or the places that it books would be lost.
	err := q.bucket.Book(context.Background(), k)
	ended := time.Now()
	clear(k.Back)
	k.Move = outbound.Ticket{}
	q.mu.Lock()
	q.clock, q.moving, q.returns, q.trips.ended = k.Clock, outbound.Ticket{}, false, ended
	if err == nil { // after an error there may have been no trip
		q.trips.measure(ended.Sub(sent), k.Clock.Back(), q.tolerance())
	}
	if told && q.clock.Known() && !q.clock.Changed() {
		q.changed = false // only the trip itself has changed something, and its reply counts that
	}
	return err
}

// refusedLocked answers the calls that the error of a trip concerns. first is the call that
// the trip was to book for; onlyNews says that no call needed the trip, and moving that it was to move the only place.
func (q *Queue) refusedLocked(first *waiter, onlyNews, moving bool, err error) {
	var full *outbound.ThrottledError
	var cost *outbound.CostError
	switch {
	case errors.As(err, &full) && full.RetryAfter == 0:
		q.noSlot = full // nobody knows when a call in progress ends
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
		q.soonest, q.pause = now.Add(full.RetryAfter), q.bookableAt(first, full.RetryAfter, now)
		q.unchecked = true
	default:
		q.refuseLocked(first, first.refusedBy(err))
		if errors.Is(err, ErrFar) {
			q.refuseAllLocked(q.asFar(first.cost, full, time.Now()))
		}
	}
}

// letGoLocked lets the calls go whose places are due.
func (q *Queue) letGoLocked(now time.Time) {
	l := &q.line
	n := 0
	for _, t := range l.tickets {
		fate, late := q.fate(t, now)
		if fate == placeStays {
			break
		}
		n++
		switch fate {
		case placeUsed:
			w := l.first
			q.stats.Admitted++
			if !w.onlyTrip {
				q.stats.Waited++
			}
			q.wasted, q.pause = 0, time.Time{}
			w.ticket = t
			l.unlink(w)
			close(w.ready)
		case placeLate:
			q.stats.Late++
			l.late, l.latest = l.late+1, max(l.latest, late)
			l.onePlaceLess()
			q.lost = true
			fallthrough
		default:
			l.unused = append(l.unused, t)
		}
	}
	clear(l.tickets[:n])
	l.tickets = l.tickets[n:] // to move the rest up each time would take longer than all else
}

// refuseTooLateLocked refuses the calls that miss their deadlines at the last n places. It is not for a trip that is
// under way.
func (q *Queue) refuseTooLateLocked(n int, now time.Time) {
	q.refuseAllLocked(q.tooLate(n, now))
	q.line.fit()
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
	q.ahead = nil
	w.err = err
	close(w.ready)
}

func (q *Queue) refuseAllLocked(all []refusal) {
	for _, r := range all {
		q.refuseLocked(r.w, r.err)
	}
}

// setTimerLocked sets the timer for the next thing to do, while nobody is pumping.
func (q *Queue) setTimerLocked() {
	if q.line.n == 0 && len(q.line.tickets)+len(q.line.unused) == 0 {
		q.restLocked()
		return
	}
	if q.ignore == nil {
		q.ignore, q.run = q.bucket.Waiting(q.onChange), q.pump
		if q.clock.Known() && q.clock.Changed() { // since the trip, and before the queue listened
			q.changed, q.noSlot = true, nil
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
		q.timer = time.AfterFunc(d, q.run)
		return
	case d > 0:
		q.timer.Reset(d)
		return
	case q.timer != nil:
		q.timer.Stop()
	}
	if !q.called {
		q.called = true
		go q.run()
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
	q.timer, q.run, q.ignore = nil, nil, nil
	q.changed, q.lost, q.unchecked, q.pieces, q.noSlot = false, false, false, 0, nil
	q.wasted, q.pause = 0, time.Time{}
	q.clock, q.ahead, q.uncounted = outbound.Clock{}, nil, nil
	if q.empty != nil {
		close(q.empty)
		q.empty = nil
	}
}

// onChange hears from the bucket that something has changed.
func (q *Queue) onChange() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed, q.noSlot = true, nil
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
