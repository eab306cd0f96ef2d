package queue

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// refusal is a call to refuse, and why.
type refusal struct {
	w   *waiter
	err error
}

// forecast returns the earliest time at which a call that comes now can go; zero: nothing is known.
func (s *state) forecast(c *outbound.Cost) (time.Time, error) {
	// The clock still counts the places that are about to go back, so it is wrong for a call
	// that would be the first.
	if !s.clock.Known() || s.line.n == 0 && len(s.line.unused) > 0 {
		return time.Time{}, nil
	}
	booked := s.clock.Booked(s.line.tickets)
	earliest, err := s.clock.Earliest(&booked, &s.line.unplacedCost, c)
	return latest(earliest, s.soonest), err
}

// admit returns why a new call must not wait, or nil.
func (s *state) admit(w *waiter, now time.Time) error {
	earliest, err := s.forecast(&w.cost)
	if err != nil {
		return err
	}
	switch {
	case s.line.n >= s.config.MaxLen:
		return s.throttled(earliest, now, ErrFull)
	case w.misses(earliest):
		return s.throttled(earliest, now, w.why())
	}
	return nil
}

// hopeless returns the calls that now miss their deadlines, after a hold, a Resume or a change
// of limits.
func (s *state) hopeless(now time.Time) (all []refusal) {
	i := 0 // of the next place
	booked := s.clock.Booked(s.line.tickets)
	var ahead outbound.Cost // of the calls without a place that come before
	for w := s.line.first; w != nil; w = w.next {
		var at time.Time
		var err error
		placed := i < len(s.line.tickets)
		if placed {
			at = s.clock.Due(s.line.tickets[i])
		} else {
			at, err = s.clock.Earliest(&booked, &ahead, &w.cost)
			at = latest(at, s.soonest)
		}
		switch {
		case err != nil:
			all = append(all, refusal{w, err})
		case w.misses(at) && at.After(s.givesUp(w, now)): // the next call gets its place
			all = append(all, refusal{w, s.throttled(at, now, w.why())})
		case placed:
			i++
		default:
			for u, c := range w.cost {
				ahead[u] += c
			}
		}
	}
	return all
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// expired returns the calls whose deadlines have passed while the queue waits for a slot, or
// for a store that brings no place in time. Otherwise the queue refuses calls beforehand.
func (s *state) expired(now time.Time) (all []refusal) {
	if s.noSlot == nil && s.pause.IsZero() || s.line.first != s.line.unplaced {
		return nil
	}
	for w := s.line.first; w != nil && !w.deadline.IsZero() && !w.deadline.After(now); w = w.next {
		e := s.throttled(time.Time{}, now, w.why())
		if s.noSlot != nil { // still true: the bucket tells when a call ends
			e.Limit, e.InProgress, e.Oldest = s.noSlot.Limit, s.noSlot.InProgress, s.noSlot.Oldest+now.Sub(s.trips.ended)
		}
		all = append(all, refusal{w, e})
	}
	return all
}

// asFar returns the calls that are too far away because a call of cost c is: those without a
// deadline whose costs are at least c in every unit.
func (s *state) asFar(c outbound.Cost, far *outbound.ThrottledError, now time.Time) (all []refusal) {
	for w := s.line.unplaced; w != nil; w = w.next {
		if !w.deadline.IsZero() || !covers(w.cost, c) {
			continue
		}
		e := *far // the caller may change it
		if at, err := s.clock.Earliest(&outbound.Cost{}, &outbound.Cost{}, &w.cost); err == nil {
			e.RetryAfter = max(e.RetryAfter, at.Sub(now))
		}
		all = append(all, refusal{w, &e})
	}
	return all
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

// throttled returns the error of a call that could go at earliest; zero: at no known time.
func (s *state) throttled(earliest, now time.Time, why error) *outbound.ThrottledError {
	e := &outbound.ThrottledError{Key: s.key, Err: why}
	if !earliest.IsZero() {
		e.RetryAfter = max(0, earliest.Sub(now))
	}
	return e
}

// why returns why the call does not wait longer: its ctx, MaxWait (nil), or neither of them.
func (w *waiter) why() error {
	switch {
	case w.byCtx:
		return context.DeadlineExceeded
	case w.deadline.IsZero():
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
