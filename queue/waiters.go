package queue

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// waiter is a call that waits. The queue's lock protects all fields but ready until
// ready is closed. Then they belong to the caller.
type waiter struct {
	prev, next *waiter
	seq        uint64        // order of arrival
	came       time.Duration // when, since start
	cost       outbound.Cost
	deadline   time.Time // the call is refused rather than let go later; zero: it has none
	byCtx      bool      // the deadline is that of the call's ctx
	gone       bool      // admitted, refused or cancelled
	untold     bool      // it came when the queue could not foretell whether it can go in time
	onlyTrip   bool      // so far it has waited for one trip to the store and nothing else

	ready  chan struct{}
	ticket outbound.Ticket // the place that the call uses, if err is nil
	err    error
}

// start is the time from which waiters count: as a Duration a time takes 16 bytes less of each.
var start = time.Now()

// result returns what has become of a call that is ready.
func (w *waiter) result(p *outbound.Permit) error {
	if w.err == nil {
		*p = w.ticket.Permit()
	}
	return w.err
}

// misses reports whether a call that goes at t misses its deadline.
func (w *waiter) misses(t time.Time) bool {
	return !w.deadline.IsZero() && t.After(w.deadline.Add(rounding))
}

// by returns the last time at which the call may go; zero: it has no deadline.
func (w *waiter) by() time.Time {
	if w.deadline.IsZero() {
		return time.Time{}
	}
	return w.deadline.Add(rounding)
}

// waiters is the line: the calls that wait, in order of arrival, and the places booked for
// them. The i-th call has the i-th place.
type waiters struct {
	first, last  *waiter
	unplaced     *waiter // the first call without a place; nil: there is none
	n            int
	untold       int // of those n
	seq          uint64
	unplacedCost outbound.Cost // of all calls without a place

	tickets []outbound.Ticket // the places
	moved   bool              // calls may have other places than those that were booked for them
	unused  []outbound.Ticket // places that no call will use; the next trip gives them back
	late    int               // how many of the unused were late
	latest  time.Duration     // and by how much at most
}

// add puts w at the end of the line.
func (l *waiters) add(w *waiter) {
	l.seq++
	w.seq, w.ready = l.seq, make(chan struct{})
	if w.prev = l.last; w.prev != nil {
		w.prev.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	if w.untold {
		l.untold++
	}
	if l.unplaced == nil {
		l.unplaced = w
	}
	l.count(w, 1)
}

// remove takes w out of the line and reports whether w had a place. The calls behind w move
// up by one place.
func (l *waiters) remove(w *waiter) (hadPlace bool) {
	hadPlace = l.hasPlace(w)
	l.moved = true
	if hadPlace {
		l.onePlaceMore()
	} else {
		if l.unplaced == w {
			l.unplaced = w.next
		}
		l.count(w, -1)
	}
	l.unlink(w)
	return hadPlace
}

func (l *waiters) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next, w.gone = nil, nil, true
	l.n--
	l.tell(w)
}

// tell notes that the queue has looked at whether w can go in time.
func (l *waiters) tell(w *waiter) {
	if w.untold {
		w.untold = false
		l.untold--
	}
}

// hasPlace reports whether a place is booked for w.
func (l *waiters) hasPlace(w *waiter) bool { return l.unplaced == nil || w.seq < l.unplaced.seq }

// onePlaceMore notes that the first call without a place has one now.
func (l *waiters) onePlaceMore() {
	if w := l.unplaced; w != nil {
		l.unplaced = w.next
		l.count(w, -1)
	}
}

// onePlaceLess notes that the last call with a place has none now.
func (l *waiters) onePlaceLess() {
	w := l.last
	if l.unplaced != nil {
		w = l.unplaced.prev
	}
	l.moved = true
	if w != nil {
		l.unplaced = w
		l.count(w, 1)
	}
}

// count adds the cost of w, times sign, to what waits without a place.
func (l *waiters) count(w *waiter, sign float64) {
	if l.unplaced == nil {
		l.unplacedCost = outbound.Cost{} // no rounding error is left behind
		return
	}
	for i, c := range w.cost {
		l.unplacedCost[i] = max(0, l.unplacedCost[i]+sign*c)
	}
}

// book adds a place behind the others.
func (l *waiters) book(t outbound.Ticket) {
	l.moved = l.moved || l.unplaced == nil || l.unplaced.cost != t.Cost()
	l.tickets = append(l.tickets, t)
	l.onePlaceMore()
}

// forget drops all places, of which nobody knows whether they are still booked: they do not go back.
func (l *waiters) forget() {
	for range min(len(l.tickets), l.n) {
		l.onePlaceLess()
	}
	clear(l.tickets)
	l.tickets = l.tickets[:0]
}

// misfits reports whether the first call has another cost than t, the first place.
func (l *waiters) misfits(t outbound.Ticket) bool { return l.first != nil && l.first.cost != t.Cost() }

// fitting returns how many places, from the first on, have a call of their cost. A place
// behind one that does not fit goes back as well, and its call books anew: what comes back
// of the misfit would come too late for it.
func (l *waiters) fitting() (n int) {
	for w := l.first; w != nil && n < len(l.tickets) && l.tickets[n].Cost() == w.cost; w = w.next {
		n++
	}
	return n
}

// fit makes all places unused that do not fit. It looks only when something has moved.
func (l *waiters) fit() {
	if !l.moved && len(l.tickets) <= l.n {
		return
	}
	fitting := l.fitting()
	for n := min(len(l.tickets), l.n); n > fitting; n-- {
		l.onePlaceLess()
	}
	l.moved = false
	l.unused = append(l.unused, l.tickets[fitting:]...)
	l.tickets = slices.Delete(l.tickets, fitting, len(l.tickets))
}

// void makes all places unused that the clock does not hold any more.
func (l *waiters) void(clock *outbound.Clock) {
	l.tickets = slices.DeleteFunc(l.tickets, func(t outbound.Ticket) bool {
		if clock.Holds(t) {
			return false
		}
		l.unused = append(l.unused, t)
		l.onePlaceLess()
		return true
	})
}
