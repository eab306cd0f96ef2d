package queue

import (
	"context"
	"errors"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The queue books places ahead for those at its head. Two marks say when: a
// place is booked when somebody has none and the last one booked is due within
// the low mark, and then more while they are due within the high one. With one
// mark every call would cost a trip; booking only when the one before has left
// would lose the timers' lateness each time.
const (
	low     = 5 * time.Millisecond
	ahead   = 10 * time.Millisecond // from the low mark to the high one
	most    = 4096                  // calls in one trip
	recheck = time.Second           // while all slots are taken: a permit may have been dropped without Done
	news    = 10 * time.Second      // while a place is far away: others may have changed the limits, or ended a hold
)

// until is when a call gives up. A MaxWait that is shorter than the way to a store that
// is far away and back counts as that: it bounds the wait for room, not the distance.
func (q *Queue) until(w *waiter, now time.Time) time.Time {
	if soonest := now.Add(q.lowMark() + q.after); q.after > 0 && !w.byCtx && !w.deadline.IsZero() && w.deadline.Before(soonest) {
		return soonest
	}
	return w.deadline
}

// lowMark is low plus what a trip may take.
func (q *Queue) lowMark() time.Duration { return low + q.trip + 4*q.spread }

// pump does what is due, and sets the timer for what is next.
func (q *Queue) pump() {
	deepen()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.called = false
	if q.busy {
		// Whoever is away sets the timer when back. Meanwhile goes what may.
		q.handOut(time.Now())
		q.watch()
		return
	}
	q.expire(time.Now())
	q.noSlot = false // ask again: a permit may have been dropped without Done
	q.busy = true
	for q.step() {
	}
	q.busy = false
	q.arm()
}

// step makes one trip to the bucket, if one is needed, and lets go what is
// due. It reports whether there may be more to do at once. mu is held, but not
// during the trip.
func (q *Queue) step() bool {
	now := time.Now()
	q.fit()
	q.handOut(now)
	if q.dirty {
		q.noSlot = false // a call may have ended while the trip was under way that found no slot
	}
	asked := q.plan(now)
	idle := q.listenIn(now) > 0 && asked == nil && !q.dirty && len(q.back) == 0
	if idle && q.newsIn(now) > 0 {
		return false
	}
	planned := q.dirty
	q.dirty = false
	before := q.clock
	q.load()
	q.moved = q.booking.Move
	q.watch()
	q.mu.Unlock()
	err := q.book()
	q.mu.Lock()
	q.clock = q.booking.Clock
	if planned && q.clock.Known() && !q.clock.Changed() {
		q.dirty = false // what this trip itself has brought about is in its reply
	}
	move := q.moved != outbound.Ticket{}
	q.moved = outbound.Ticket{}
	switch {
	case err == nil && move && len(q.booking.Tickets) > 0 && len(q.tickets) > 0:
		q.tickets[0] = q.booking.Tickets[0]
	case err == nil:
		for _, t := range q.booking.Tickets {
			q.tickets = append(q.tickets, t)
			q.list.place()
		}
	case slotless(err):
		q.noSlot, q.full = true, err
	case !denied(err):
		if !idle { // else it was for news only, and who waits may wait on
			q.fail(err)
		}
	case asked != nil && !asked.gone:
		q.refuse(asked, reason(err, asked.deadline, asked.byCtx))
		if errors.Is(err, ErrFar) {
			q.refuseFar(asked.cost, err)
		}
	}
	if !q.clock.Same(&before) { // who has a place now is not planned again
		q.replan()
	}
	if asked != nil && !move {
		n := len(q.booking.Tickets)
		if n == len(q.booking.Costs) {
			n *= 2 // there may be room for many more
		}
		q.granted, q.claim = max(n, q.granted/2), q.booking.Claim
	}
	none := asked != nil && !asked.gone && err == nil && !move && len(q.booking.Tickets) == 0
	clear(q.booking.Tickets)
	admitted, late := q.stats.Admitted, q.stats.Late
	q.fit() // somebody may have cancelled meanwhile
	q.handOut(time.Now())
	if asked != nil {
		asked.alone = false
	}
	q.reckon(q.stats.Admitted == admitted && (none || q.stats.Late > late))
	return true
}

// listenIn is how long until there is something to do for those who have a place:
// when the first is due, or a trip before the first for which the clock will be too
// old by then. Of a store that is far away that is hardly ever the first of all.
func (q *Queue) listenIn(now time.Time) time.Duration {
	n := len(q.tickets)
	if n == 0 {
		return 1<<63 - 1
	}
	in := q.clock.Due(q.tickets[0]).Sub(now)
	if i := sort.Search(n, func(i int) bool { return q.clock.Stale(q.tickets[i]) }); i < n {
		in = min(in, q.clock.Due(q.tickets[i]).Sub(now)-q.lowMark())
	}
	return in
}

// newsIn is how long until the clock is to be heard although the first place is
// far away. Of what happens in this process the bucket tells by itself.
func (q *Queue) newsIn(now time.Time) time.Duration {
	if !q.shared || len(q.tickets) == 0 {
		return 1<<63 - 1
	}
	return q.heard.Add(news).Sub(now)
}

// plan decides what to book: it sets the booking's costs, and returns the
// first of the calls they are for, or nil.
func (q *Queue) plan(now time.Time) *waiter {
	k := &q.booking
	k.Costs, k.Move = k.Costs[:0], outbound.Ticket{}
	n := len(q.tickets)
	var last time.Duration
	if n > 0 {
		last = q.clock.Due(q.tickets[n-1]).Sub(now)
	}
	lo := q.lowMark()
	w := q.list.rest
	switch {
	case q.dirty && n == 1 && q.list.first != nil && last > lo:
		// Units may have come back: a place that is far away may be nearer now.
		w = q.list.first
		k.Move = q.tickets[0]
		k.Costs = append(k.Costs, w.cost)
	case w == nil || q.noSlot || now.Before(q.calm) || n > 0 && last > lo && (last > lo+q.after || q.listenIn(now) > 0):
		return nil // unless there is a trip anyway, and the next would be too late
	default:
		// As many as went the last time, and half as many more: who is asked
		// for in vain costs time as well.
		want := min(most, 16+q.granted*3/2)
		if q.shared && q.trip == 0 {
			want = 1 // who knows how far away the store is: it may be given back
		}
		for v := w; v != nil && len(k.Costs) < want; v = v.next {
			k.Costs = append(k.Costs, v.cost)
		}
	}
	k.Wait, k.Horizon, k.After = within(q.until(w, now), now), lo+ahead+q.after, q.after
	if q.vain > 1 && q.shared { // replies take longer than the store tells, but no longer than a trip
		k.After = max(k.After, q.trip)
	}
	q.claims()
	return w
}

// claims sets what the booking claims: a share as large as that of any other
// worker with a backlog, which is more calls without a place than the one that
// gets one for certain. Without it those close to the store would have most of
// a busy bucket. A place that is booked anew was counted before.
func (q *Queue) claims() {
	k := &q.booking
	switch {
	case k.Move != outbound.Ticket{}:
		k.Claim = 0
		return
	case len(k.Costs) == 1:
		q.claim = 0
	case q.claim == 0:
		q.claim = math.Inf(1)
	}
	k.Claim = q.claim
}

// book makes the trip, and measures it as TCP measures its round trips. One that
// is far too long counts less: it would have places booked too far ahead for a
// while. So does the first, which may open a connection, once there is another. The
// caller is busy and does not hold mu.
func (q *Queue) book() error {
	sent := time.Now()
	// A call's own ctx does not end it: what was booked would be lost.
	err := q.bucket.Book(context.Background(), &q.booking)
	q.booking.Move = outbound.Ticket{}
	clear(q.booking.Back)
	q.booking.Back, q.booking.Lost, q.booking.Late = q.booking.Back[:0], 0, 0
	q.heard = time.Now()
	if err != nil { // there may have been no trip
		return err
	}
	took, back := q.heard.Sub(sent), q.booking.Clock.Back()
	if q.after = back; back <= q.tolerance(&q.booking.Clock)/2 {
		q.after = 0
	}
	if q.trip == 0 || took < q.trip/2 {
		q.trip, q.spread = max(1, took), took/8
	}
	q.trip = max(q.trip, min(took, back)) // as after an outage
	took = min(took, q.trip+max(4*q.spread, ahead))
	q.spread += (max(took-q.trip, q.trip-took) - q.spread) / 4
	q.trip += (took - q.trip) / 8
	return err
}

// handOut gives the places that are due to those who wait, in order.
func (q *Queue) handOut(now time.Time) {
	gone := 0
	for _, t := range q.tickets {
		if t == q.moved { // it is in a trip's hands
			break
		}
		// One of another cost was booked for somebody who has cancelled during the
		// trip that is under way: those behind it go back with it.
		if q.misfits(t) {
			break
		}
		ready, late := q.clock.Ready(t, now)
		if !ready {
			break
		}
		gone++
		switch w := q.list.first; {
		case w == nil:
			q.back = append(q.back, t)
		case late > q.tolerance(&q.clock):
			// Used now it would go beside what others have booked since.
			q.stats.Late++
			q.lost, q.latest = q.lost+1, max(q.latest, late)
			q.back = append(q.back, t)
			q.list.unplace()
		default:
			q.stats.Admitted++
			q.vain, q.calm = 0, time.Time{}
			if !w.alone {
				q.stats.Waited++
			}
			w.ticket = t
			close(q.list.pop().ready)
		}
	}
	q.tickets = slices.Delete(q.tickets, 0, gone)
}

// misfits reports whether the next place is none for the first who waits.
func (q *Queue) misfits(t outbound.Ticket) bool {
	return q.list.first != nil && q.list.first.cost != t.Cost()
}

// fit gives back the places that nobody can use any more: those beyond the
// last who waits, and all from the first on that is not of the cost of the one
// who waits for it. Those behind are booked anew, with it: what comes back of a
// place in the middle would come too late for them.
func (q *Queue) fit() {
	fits := 0
	for w := q.list.first; w != nil && fits < len(q.tickets) && q.tickets[fits].Cost() == w.cost; w = w.next {
		fits++
	}
	for n := min(len(q.tickets), q.list.n); n > fits; n-- {
		q.list.unplace()
	}
	q.back = append(q.back, q.tickets[fits:]...)
	q.tickets = slices.Delete(q.tickets, fits, len(q.tickets))
}

// fail answers those whom an error of the store concerns: all who have no place,
// and those whose place comes before the clock can be heard once more. Their
// places are lost. Who comes later asks again.
func (q *Queue) fail(err error) {
	now := time.Now()
	q.handOut(now) // who needs no more than what was heard
	for q.list.rest != nil {
		q.refuse(q.list.rest, err)
	}
	w := q.list.first
	q.tickets = slices.DeleteFunc(q.tickets, func(t outbound.Ticket) bool {
		v, in := w, q.clock.Due(t).Sub(now)
		if v == nil {
			return false
		}
		w = v.next
		if in > q.lowMark() || in > 0 && !q.clock.Stale(t) {
			return false // it needs no trip now
		}
		q.refuse(v, err)
		return true
	})
}

// cancel takes out a call whose ctx has ended. It reports whether the call was
// still waiting.
func (q *Queue) cancel(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.gone {
		return false
	}
	q.stats.Cancelled++
	first := w == q.list.first
	if (q.list.remove(w) || first) && !q.busy {
		q.fit()
		q.arm()
	}
	return true
}

// refuse takes a call out and answers it with err.
func (q *Queue) refuse(w *waiter, err error) {
	q.stats.Refused++
	q.list.remove(w)
	w.err = err
	close(w.ready)
}

func (q *Queue) refuseAll(err error) {
	for q.list.first != nil {
		q.refuse(q.list.first, err)
	}
	q.fit()
}

// replan goes through all who wait once, after a hold, a Resume or a change of
// limits, and refuses who cannot make it any more.
func (q *Queue) replan() {
	q.tickets = slices.DeleteFunc(q.tickets, func(t outbound.Ticket) bool {
		if q.clock.Holds(t) {
			return false
		}
		q.back = append(q.back, t)
		q.list.unplace()
		return true
	})
	w := q.list.first
	for i := 0; i < len(q.tickets) && w != nil && q.list.placed(w); {
		next, due := w.next, q.clock.Due(q.tickets[i])
		if w.misses(due) && due.After(q.until(w, time.Now())) {
			q.refuse(w, q.refusal(due, because(w.byCtx))) // its place is the next one's
		} else {
			i++
		}
		w = next
	}
	var sum outbound.Cost // of those ahead
	for w := q.list.rest; w != nil; {
		next := w.next
		earliest, err := q.clock.Earliest(&sum, &w.cost)
		switch {
		case err != nil:
			q.refuse(w, err)
		case w.misses(earliest) && earliest.After(q.until(w, time.Now())):
			q.refuse(w, q.refusal(earliest, because(w.byCtx)))
		default:
			for i, c := range w.cost {
				sum[i] += c
			}
		}
		w = next
	}
}
