package queue

import (
	"math"
	"slices"
	"sync/atomic"
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
	deadline   time.Time // the call is refused instead of leaving later
	gone       bool      // admitted, refused or cancelled
	sure       bool      // it goes in time, if nothing changes
	onlyTrip   bool      // so far it has waited for one request to the store and nothing else

	ready  chan struct{}
	ticket outbound.Ticket // the reservation that the call uses, if err is nil
	err    error           // why the call is refused; until then, what sets its deadline: its ctx, ErrFar or MaxWait (nil)
}

// start is the time from which waiters count: as a Duration a time takes 16 bytes less of each.
var start = time.Now()

// waiters is the line: the calls that wait, in order of arrival, and the reservations booked for
// them. The i-th call has the i-th reservation, which was booked for the same cost.
type waiters struct {
	end       waiter  // closes a ring: the first call is behind it, and the last before it
	unbooked  *waiter // the first call without a reservation, or end
	uncounted *waiter // the first of those that the sums leave out, up to the last, or end
	n         int
	waits     atomic.Bool // n > 0, for queues behind this one
	seq       uint64
	sums                        // of the calls without a reservation up to uncounted
	of        *Queue            // whose line it is
	tickets   []outbound.Ticket // the reservations
	unused    []outbound.Ticket // reservations that no call will use; the next request returns them
	late      int               // how many of the unused were late
	lost      int               // how many of those by this process, not by a pause
	latest    time.Duration     // and by how much at most
}

// sums are costs of calls that wait.
type sums struct {
	all         outbound.Cost // of all
	far         outbound.Cost // of those without a deadline
	sure        outbound.Cost // of those that surely leave in time
	until, gone time.Time     // when the first of all may give up that is not sure, and the first of far, or zero
	mixed       bool          // they may cost differently
}

// init makes an empty line.
func (l *waiters) init(q *Queue) {
	l.of = q
	l.end = waiter{prev: &l.end, next: &l.end, seq: math.MaxUint64}
	l.unbooked, l.uncounted = &l.end, &l.end
}

// add puts w at the end of the line. The sums count it if it was judged.
func (l *waiters) add(w *waiter, judged bool) {
	l.seq++
	w.seq = l.seq
	w.prev, w.next = l.end.prev, &l.end
	w.prev.next, l.end.prev = w, w
	l.n++
	l.waits.Store(true)
	if l.unbooked == &l.end {
		l.unbooked = w
	}
	if l.uncounted == &l.end {
		l.uncounted = w
	}
	if judged {
		l.countNext()
	}
}

// remove takes w out of the line. The calls behind it move up by one position.
func (l *waiters) remove(w *waiter) {
	booked := w.seq < l.unbooked.seq
	switch {
	case !booked:
		l.leave(w, w.sure)
	case l.unbooked != &l.end:
		l.leave(l.unbooked, true)
	}
	if l.unlink(w); booked {
		l.fit()
	}
}

func (l *waiters) unlink(w *waiter) {
	w.prev.next, w.next.prev = w.next, w.prev
	w.prev, w.next, w.gone = nil, nil, true
	if l.n--; l.n == 0 {
		l.waits.Store(false)
	}
}

// leave takes w out of the calls without a reservation. One that has a reservation now
// counts among those that surely leave, sure or not.
func (l *waiters) leave(w *waiter, sure bool) {
	switch {
	case w.seq < l.uncounted.seq:
		l.count(w, -1, sure)
	case l.uncounted == w:
		l.uncounted = w.next
	}
	if l.unbooked == w {
		l.unbooked = w.next
	}
	if l.unbooked == l.uncounted {
		l.uncount() // no rounding error is left behind
	}
}

// uncount leaves all calls out of the sums.
func (l *waiters) uncount() {
	l.uncounted, l.sums = l.unbooked, sums{}
}

// countNext takes the first call that was left out of the sums into them.
func (l *waiters) countNext() {
	w := l.uncounted
	l.uncounted = w.next
	l.mixed = l.mixed || w.cost != l.unbooked.cost
	l.count(w, 1, w.sure)
}

// count adds the cost of w, times sign, to the sums.
func (l *waiters) count(w *waiter, sign float64, sure bool) {
	l.sums.count(w, sign, sure, l.of.expires(w))
}

func (s *sums) count(w *waiter, sign float64, sure bool, expires time.Time) {
	far := w.err == ErrFar
	if sign > 0 && !sure {
		s.until = earlier(s.until, expires)
	}
	if sign > 0 && far {
		s.gone = earlier(s.gone, expires)
	}
	for i, c := range w.cost {
		s.all[i] = max(0, s.all[i]+sign*c)
		if far {
			s.far[i] = max(0, s.far[i]+sign*c)
		}
		if sure {
			s.sure[i] = max(0, s.sure[i]+sign*c)
		}
	}
}

// bound returns a lower bound of when a call of this cost leaves behind those that the sums count.
// It also returns the limit that the call waits for.
func (s *sums) bound(k *outbound.Clock, c *outbound.Cost) (at time.Time, limit string, err error) {
	at, limit, err = k.Bound(c, &s.sure, &s.all, s.until, s.mixed)
	if s.far != s.sure && err == nil {
		if more, which, _ := k.Bound(c, &s.sure, &s.far, s.gone, s.mixed); more.After(at) {
			at, limit = more, which
		}
	}
	return at, limit, err
}

// earlier returns the earlier of two times, or b if a is zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// addTo adds the calls without a reservation to other sums: those that its own leave out, too, if
// they are few.
func (l *waiters) addTo(to *sums) {
	for i := range l.all {
		to.all[i], to.far[i], to.sure[i] = to.all[i]+l.all[i], to.far[i]+l.far[i], to.sure[i]+l.sure[i]
	}
	to.mixed = to.mixed || l.mixed
	if !l.until.IsZero() {
		to.until = earlier(to.until, l.until)
	}
	if !l.gone.IsZero() {
		to.gone = earlier(to.gone, l.gone)
	}
	for w, n := l.uncounted, 0; w != &l.end && n < piece; w, n = w.next, n+1 {
		to.count(w, 1, false, l.of.expires(w))
		to.mixed = to.mixed || w.cost != l.unbooked.cost
	}
}

// unbookLast notes that the last call with a reservation has none now.
func (l *waiters) unbookLast() {
	w := l.unbooked.prev
	l.unbooked = w
	l.mixed = l.mixed || w.next != &l.end && w.cost != w.next.cost
	l.count(w, 1, w.sure)
}

// takeTickets takes all reservations from their calls and returns them.
func (l *waiters) takeTickets() (tickets []outbound.Ticket) {
	for l.unbooked != l.end.next {
		l.unbookLast()
	}
	tickets, l.tickets = l.tickets, nil
	return tickets
}

// fit makes all reservations unused that do not fit: those behind the last call, and the first that
// has another cost than its call with all behind it. The calls of those book again: the returned
// units of a misfit would be too late for them.
func (l *waiters) fit() {
	i, w := 0, l.end.next
	for ; i < len(l.tickets) && w != &l.end && l.tickets[i].Cost() == w.cost; w = w.next {
		i++
	}
	for l.unbooked != w {
		l.unbookLast()
	}
	l.unused = append(l.unused, l.tickets[i:]...)
	l.tickets = slices.Delete(l.tickets, i, len(l.tickets))
}
