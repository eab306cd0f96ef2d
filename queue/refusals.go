package queue

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// known reports whether the clock counts those in line and nobody else.
func (s *state) known() bool { return s.clock.Known() && len(s.line.unused) == 0 }

// current reports whether a call may be refused by the clock. Until a trip has ended the clock
// still counts the places that go back with it, and what else has come back.
func (s *state) current() bool { return s.known() && s.news == 0 }

// admit returns why a new call must not wait, or nil. counted says whether the call is judged.
func (s *state) admit(w *waiter, now time.Time) (counted bool, err error) {
	for _, n := range w.cost {
		if !(n >= 0 && n <= math.MaxFloat64) && n != outbound.Free {
			return false, &outbound.CostError{Key: s.key, Cost: w.cost, Err: outbound.ErrInvalid}
		}
	}
	if counted = s.current() && s.line.uncounted == nil; counted {
		err = s.judge(w, now)
	}
	if err != nil || s.line.n < s.config.MaxLen {
		return counted, err
	}
	var at time.Time
	if s.current() {
		if at, err = s.earliest(w); err != nil {
			return false, err
		}
	}
	e := s.throttled(w, at, now)
	e.Err = ErrFull
	return false, e
}

// judge returns why a call that goes behind all that the sums count must not wait, and finds out
// whether it surely goes in time: only such calls count against others.
func (s *state) judge(w *waiter, now time.Time) error {
	// If all cost the same, one of w and the calls ahead goes by the next place, though perhaps not
	// w itself.
	l, by := &s.line, s.expires(w).Add(rounding)
	ahead, alike := &l.all, !l.mixed && (l.unplaced == nil || l.unplaced.cost == w.cost)
	if alike {
		ahead = &l.sure
	}
	w.sure = !s.head.soonest.After(by) && s.clock.Surely(&w.cost, ahead, l.n, alike, by)
	if w.sure {
		return nil // most are, and need no more of their small stacks
	}
	at, err := s.earliest(w)
	if err == nil && at.After(by) {
		err = s.throttled(w, at, now)
	}
	return err
}

// earliest returns a lower bound of the time at which a call goes behind all that the sums count.
func (s *state) earliest(w *waiter) (time.Time, error) {
	at, _, err := s.clock.Earliest(&w.cost, &s.line.sure)
	return latest(at, s.head.soonest), err
}

// expires is when a call gives up that has no place, or a later one. A MaxWait bounds the wait for
// room and not the store's distance: it counts as two trips and a reply's way back if it is
// shorter, because the first trip may only tell the distance.
func (s *state) expires(w *waiter) time.Time {
	if s.trips.wayBack == 0 || w.byCtx {
		return w.deadline
	}
	return latest(w.deadline, start.Add(w.came+2*s.trips.lowMark()+s.trips.wayBack))
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// throttled returns the error of a call that could go at earliest; zero: at no known time.
func (s *state) throttled(w *waiter, earliest, now time.Time) *outbound.ThrottledError {
	e := &outbound.ThrottledError{Key: s.key, Err: w.why()}
	if !earliest.IsZero() {
		e.RetryAfter = max(0, earliest.Sub(now))
	}
	if full := s.head.full; full != nil { // still true: the bucket tells when a call ends
		e.Limit, e.InProgress, e.Oldest = full.Limit, full.InProgress, full.Oldest+now.Sub(s.trips.ended)
	} else if s.known() {
		_, e.Limit, _ = s.clock.Earliest(&w.cost, &s.line.sure)
	}
	return e
}

// why returns why the call does not wait longer: its ctx, MaxWait (nil), or farthest.
func (w *waiter) why() error {
	switch {
	case w.byCtx:
		return context.DeadlineExceeded
	case w.far:
		return ErrFar
	}
	return nil
}

// refusedBy adds to the bucket's refusal of a call why the call does not wait longer.
func (w *waiter) refusedBy(err error) error {
	var full *outbound.ThrottledError
	if errors.As(err, &full) {
		full.Err = w.why()
	}
	return err
}
