package queue

import (
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// farthest is how far away a place may be where nobody has said how long to wait. A
// level that is wrong, by whatever fault, would have the queue stand still for years.
const farthest = 24 * time.Hour

// refuseFar refuses those who would wait for ever behind a call of cost c that is
// refused as far away: all that take no less of anything. Others have their turn.
func (q *Queue) refuseFar(c outbound.Cost, err error) {
	var far *outbound.ThrottledError
	if !errors.As(err, &far) {
		return
	}
	for w := q.list.rest; w != nil; {
		next := w.next
		if w.deadline.IsZero() && covers(w.cost, c) {
			e := *far // who gets it may change it
			if at, err := q.clock.Earliest(&outbound.Cost{}, &w.cost); err == nil {
				e.RetryAfter = max(e.RetryAfter, time.Until(at))
			}
			q.refuse(w, &e)
		}
		w = next
	}
}

// covers reports whether c is at least d in every unit.
func covers(c, d outbound.Cost) bool {
	for i := range c {
		if c[i] < d[i] {
			return false
		}
	}
	return true
}
