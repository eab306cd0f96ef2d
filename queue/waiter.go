package queue

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// waiter is a call that waits. All fields but ready belong to the queue's lock
// until ready is closed, and to the caller then.
type waiter struct {
	prev, next *waiter
	seq        uint64 // order of arrival
	cost       outbound.Cost
	deadline   time.Time // refuse rather than go after it; zero: none
	byCtx      bool      // the deadline is that of its ctx
	gone       bool      // out of the list: admitted, refused or cancelled
	alone      bool      // it has only waited for its own trip to a store, so far

	ready  chan struct{}
	ticket outbound.Ticket // if err is nil
	err    error
}

// result returns what has become of a call that is ready.
func (w *waiter) result(p *outbound.Permit) error {
	if w.err == nil {
		*p = w.ticket.Permit()
	}
	return w.err
}

// misses reports whether a call that goes at t goes too late.
func (w *waiter) misses(t time.Time) bool {
	return !w.deadline.IsZero() && t.After(w.deadline.Add(rounding))
}

// list is the calls that wait, in order of arrival. The first len(tickets) of
// them have a place, in the same order; rest is the first that has none.
type list struct {
	first, last, rest *waiter
	n                 int
	ahead             outbound.Cost // sum over those without a place
	seq               uint64
}

func (l *list) pushBack(w *waiter) {
	l.seq++
	w.seq = l.seq
	if w.prev = l.last; w.prev != nil {
		w.prev.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	if l.rest == nil {
		l.rest = w
	}
	l.add(w, 1)
}

// remove takes w out. It reports whether w had a place, which now is that of
// the one behind it.
func (l *list) remove(w *waiter) (placed bool) {
	w.gone = true
	placed = l.placed(w)
	if placed {
		l.place()
	} else {
		if l.rest == w {
			l.rest = w.next
		}
		l.add(w, -1)
	}
	l.unlink(w)
	return placed
}

// pop takes out the first, who uses its place.
func (l *list) pop() *waiter {
	w := l.first
	w.gone = true
	l.unlink(w)
	return w
}

func (l *list) unlink(w *waiter) {
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
	w.prev, w.next = nil, nil
	l.n--
}

// placed reports whether w has a place.
func (l *list) placed(w *waiter) bool { return l.rest == nil || w.seq < l.rest.seq }

// place notes that there is a place more: for the first that had none.
func (l *list) place() {
	if w := l.rest; w != nil {
		l.rest = w.next
		l.add(w, -1)
	}
}

// unplace notes that there is a place less: the last that had one has none.
func (l *list) unplace() {
	w := l.last
	if l.rest != nil {
		w = l.rest.prev
	}
	if w != nil {
		l.rest = w
		l.add(w, 1)
	}
}

// add counts w's cost into, or out of, what waits without a place.
func (l *list) add(w *waiter, sign float64) {
	if l.rest == nil {
		l.ahead = outbound.Cost{} // no rounding is left behind
		return
	}
	for i, c := range w.cost {
		l.ahead[i] = max(0, l.ahead[i]+sign*c)
	}
}
