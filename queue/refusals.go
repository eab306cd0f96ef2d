package queue

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// refusal is a call to refuse, and why.
type refusal struct {
	w   *waiter
	err error
}

// known reports whether the clock tells of those in line and of nobody else.
func (s *state) known() bool { return s.clock.Known() && len(s.line.unused) == 0 }

// foretells reports whether a call may be refused by what the clock tells. Until a trip has ended
// it still counts the places that go back with it, and what else has come back.
func (s *state) foretells() bool { return s.known() && s.news == 0 }

// admit returns why a new call must not wait, or nil. Then it is the next in line.
func (s *state) admit(w *waiter, now time.Time) error {
	for _, n := range w.cost {
		if !(n >= 0 && n <= math.MaxFloat64) && n != outbound.Free {
			return &outbound.CostError{Key: s.key, Cost: w.cost, Err: outbound.ErrInvalidCost}
		}
	}
	foretold := s.foretells() && s.line.untold == nil
	if foretold {
		if err := s.judge(w, now, w.deadline); err != nil {
			return err
		}
	}
	if s.line.n < s.config.MaxLen {
		w.told = foretold
		return nil
	}
	var earliest time.Time
	if s.foretells() {
		at, _, err := s.clock.Earliest(&w.cost, &s.line.sure)
		if err != nil {
			return err
		}
		earliest = latest(at, s.head.soonest)
	}
	e := s.throttled(w, earliest, now)
	e.Err = ErrFull
	return e
}

// judge returns why a call that goes behind all that the sums count must not wait until a time.
// Else it finds out whether the call is sure to go: only such calls count
// against others.
func (s *state) judge(w *waiter, now, until time.Time) error {
	l := &s.line
	at, _, err := s.clock.Earliest(&w.cost, &l.sure)
	if err != nil {
		return err
	}
	if at = latest(at, s.head.soonest); at.After(until.Add(rounding)) {
		return s.throttled(w, at, now)
	}
	s.find(w)
	return nil
}

// surely reports whether a call that comes now is surely in time: most are, and need no more of
// their small stacks.
func (s *state) surely(w *waiter) bool {
	return s.line.n < s.config.MaxLen && s.line.untold == nil && s.foretells() && s.find(w)
}

// find finds out whether a call that goes behind all that the sums count is sure to go, and not too
// late.
func (s *state) find(w *waiter) bool {
	// If all cost the same, one of w and the calls ahead goes by the next place, though perhaps not
	// w itself.
	l := &s.line
	ahead, alike := &l.all, !l.mixed && (l.unplaced == nil || l.unplaced.cost == w.cost)
	if alike {
		ahead = &l.sure
	}
	w.sure = s.head.soonest.IsZero() && s.clock.Surely(&w.cost, ahead, l.n, alike, w.deadline.Add(rounding))
	return w.sure
}

// tooLate returns the calls that miss their deadlines at the last n places. A booking has the
// deadline of its first call, and books places far behind that where the queue catches up with
// other workers. And where a place was lost, each call has that of the next.
func (s *state) tooLate(n int, now time.Time) (all []refusal) {
	l := &s.line
	i, w := max(0, len(l.tickets)-1), l.last
	if l.unplaced != nil {
		w = l.unplaced.prev
	}
	for ; n > 1 && i > 0; n-- { // to the first of them
		i, w = i-1, w.prev
	}
	for ; w != nil && i < len(l.tickets) && l.tickets[i].Cost() == w.cost; w = w.next {
		if at := s.clock.Due(l.tickets[i]); at.After(w.deadline.Add(rounding)) && at.After(s.givesUp(w, now)) { // the next call gets its place
			all = append(all, refusal{w, s.throttled(w, at, now)})
		} else {
			i++
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

// expired returns the calls whose deadlines have passed while they had no place.
func (s *state) expired(now time.Time) (all []refusal) {
	for w := s.line.unplaced; w != nil && !s.expires(w).After(now); w = w.next {
		all = append(all, refusal{w, s.throttled(w, time.Time{}, now)})
	}
	return all
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
