package queue

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// known reports whether the clock counts those in line and nobody else.
func (q *Queue) known() bool { return q.clock.Known() && len(q.line.unused) == 0 }

// current reports whether a call may be refused by the clock. Until a trip has ended the clock
// still counts the places that go back with it, and what else has come back.
func (q *Queue) current() bool { return q.known() && q.news == 0 }

// admit returns why a new call must not wait, or nil. refused is the bucket's refusal, if it was asked
// for the call. judged says whether the call was judged.
func (q *Queue) admit(w *waiter, now time.Time, refused error) (judged bool, err error) {
	if err = w.refusedBy(refused, w.deadline, now); err != nil {
		return false, err
	}
	w.onlyTrip = q.shared && q.line.n == 0
	for i := range w.cost {
		if n := w.cost[i]; !(n >= 0 && n <= math.MaxFloat64) && n != outbound.Free {
			return false, &outbound.CostError{Key: q.key, Cost: w.cost, Err: outbound.ErrInvalid}
		}
	}
	if judged = q.current() && q.line.uncounted == &q.line.end; judged {
		err = q.judge(w, now)
	}
	if err == nil && q.line.n >= q.config.MaxLen {
		var at time.Time
		if q.current() {
			at, err = q.earliest(w)
		}
		if err == nil {
			w.err = ErrFull
			err = q.throttled(w, at, now)
		}
	}
	return judged, err
}

// judge returns why a call that goes behind all that the sums count must not wait, and finds out
// whether it surely goes in time: only such calls count against others.
func (q *Queue) judge(w *waiter, now time.Time) error {
	// If all cost the same, one of w and the calls ahead goes by the next place, though perhaps not
	// w itself.
	l, by := &q.line, q.expires(w).Add(rounding)
	ahead, alike := &l.all, !l.mixed && (l.unplaced == &l.end || l.unplaced.cost == w.cost)
	if alike {
		ahead = &l.sure
	}
	w.sure = !q.head.soonest.After(by) && q.clock.Surely(&w.cost, ahead, l.n, alike, by)
	if w.sure {
		return nil // most are, and need no more of their small stacks
	}
	at, err := q.earliest(w)
	if err == nil && at.After(by) {
		err = q.throttled(w, at, now)
	}
	return err
}

// earliest returns a lower bound of the time at which a call goes behind all that the sums count.
func (q *Queue) earliest(w *waiter) (time.Time, error) {
	at, _, err := q.clock.Earliest(&w.cost, &q.line.sure)
	return latest(at, q.head.soonest), err
}

// expires is when a call gives up that has no place, or a later one. A MaxWait bounds the wait for
// room and not the store's distance: it counts as two trips and a reply's way back if it is
// shorter, because the first trip may only tell the distance.
func (q *Queue) expires(w *waiter) time.Time {
	if q.trips.wayBack == 0 || w.err == context.DeadlineExceeded {
		return w.deadline
	}
	return latest(w.deadline, start.Add(w.came+2*q.trips.lowMark()+q.trips.wayBack))
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// throttled returns the error of a call that could go at earliest; zero: at no known time.
func (q *Queue) throttled(w *waiter, earliest, now time.Time) *outbound.ThrottledError {
	e := &outbound.ThrottledError{Key: q.key, Err: w.err}
	if !earliest.IsZero() {
		e.RetryAfter = max(0, earliest.Sub(now))
	}
	if full := q.head.full; full != nil { // still true: the bucket tells when a call ends
		e.Limit, e.InProgress, e.Oldest = full.Limit, full.InProgress, full.Oldest+now.Sub(q.trips.ended)
	} else if q.known() {
		_, e.Limit, _ = q.clock.Earliest(&w.cost, &q.line.sure)
	}
	return e
}

// refusedBy returns the bucket's refusal of a call with the reason why the call does not wait longer,
// or nil if the call can go by then.
func (w *waiter) refusedBy(err error, by, now time.Time) error {
	full, ok := errors.AsType[*outbound.ThrottledError](err)
	if ok && full.RetryAfter <= within(by, now) {
		return nil
	}
	if ok {
		full.Err = w.err
	}
	return err
}
