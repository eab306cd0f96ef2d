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
	deadline   time.Time // the call is refused rather than let go later
	byCtx      bool      // the deadline is that of the call's ctx
	far        bool      // the deadline is farthest away, because neither ctx nor MaxWait has one
	gone       bool      // admitted, refused or cancelled
	sure       bool      // it goes in time, if nothing changes
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

// waiters is the line: the calls that wait, in order of arrival, and the places booked for
// them. The i-th call has the i-th place.
type waiters struct {
	first, last *waiter
	unplaced    *waiter // the first call without a place; nil: there is none
	uncounted   *waiter // the first of those that the sums leave out, up to the last; nil: there is none
	n           int
	seq         uint64
	all         outbound.Cost // the sum of the calls without a place
	sure        outbound.Cost // what of that surely goes
	mixed       bool          // they may cost differently

	tickets []outbound.Ticket // the places
	moved   bool              // calls may have other places than those that were booked for them
	unused  []outbound.Ticket // places that no call will use; the next trip gives them back
	late    int               // how many of the unused were late
	latest  time.Duration     // and by how much at most
}

// add puts w at the end of the line. The sums count it if all are counted, and w is judged.
func (l *waiters) add(w *waiter, judged bool) {
	l.seq++
	w.seq = l.seq
	if w.prev = l.last; w.prev != nil {
		w.prev.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	if l.unplaced == nil {
		l.unplaced = w
	}
	if l.uncounted == nil {
		if l.uncounted = w; judged {
			l.countNext()
		}
	}
}

// remove takes w out of the line and reports whether w had a place. The calls behind w move
// up by one place.
func (l *waiters) remove(w *waiter) (hadPlace bool) {
	hadPlace = l.hasPlace(w)
	l.moved = true
	if hadPlace {
		l.onePlaceMore()
	} else {
		l.leave(w, w.sure)
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
}

// leave takes w out of the calls without a place. One that has a place now is among what surely
// went, sure or not.
func (l *waiters) leave(w *waiter, sure bool) {
	switch {
	case l.uncounted == nil || w.seq < l.uncounted.seq:
		l.count(w, -1, sure)
	case l.uncounted == w:
		l.uncounted = w.next
	}
	if l.unplaced == w {
		l.unplaced = w.next
	}
	if l.unplaced == nil || l.unplaced == l.uncounted {
		l.uncount() // no rounding error is left behind
	}
}

// uncount leaves all calls out of the sums.
func (l *waiters) uncount() {
	l.uncounted, l.all, l.sure, l.mixed = l.unplaced, outbound.Cost{}, outbound.Cost{}, false
}

// countNext takes the first call that was left out of the sums into them.
func (l *waiters) countNext() {
	w := l.uncounted
	l.uncounted = w.next
	l.mixed = l.mixed || w.cost != l.unplaced.cost
	l.count(w, 1, w.sure)
}

// hasPlace reports whether a place is booked for w.
func (l *waiters) hasPlace(w *waiter) bool { return l.unplaced == nil || w.seq < l.unplaced.seq }

// onePlaceMore notes that the first call without a place has one now.
func (l *waiters) onePlaceMore() {
	if l.unplaced != nil {
		l.leave(l.unplaced, true)
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
		l.mixed = l.mixed || w.next != nil && w.cost != w.next.cost
		l.count(w, 1, w.sure)
	}
}

// count adds the cost of w, times sign, to the sums.
func (l *waiters) count(w *waiter, sign float64, sure bool) {
	for i, c := range w.cost {
		l.all[i] = max(0, l.all[i]+sign*c)
		if sure {
			l.sure[i] = max(0, l.sure[i]+sign*c)
		}
	}
}

// book adds a place behind the others.
func (l *waiters) book(t outbound.Ticket) {
	l.moved = l.moved || l.unplaced == nil || l.unplaced.cost != t.Cost()
	l.tickets = append(l.tickets, t)
	l.onePlaceMore()
}

// forget drops all places, of which nobody knows whether they are still booked: they do not go
// back.
func (l *waiters) forget() {
	for range min(len(l.tickets), l.n) {
		l.onePlaceLess()
	}
	clear(l.tickets)
	l.tickets = l.tickets[:0]
}

// fit makes all places unused that do not fit: those behind the last call, and the first that has
// another cost than its call with all behind it. The calls of those book anew: what comes back of a
// misfit would come too late for them. It looks only when something has moved.
func (l *waiters) fit() {
	if !l.moved && len(l.tickets) <= l.n {
		return
	}
	fitting := 0
	for w := l.first; w != nil && fitting < len(l.tickets) && l.tickets[fitting].Cost() == w.cost; w = w.next {
		fitting++
	}
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
