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

// forecast returns the earliest time at which a call that comes now can go, by what the last trip has told; zero:
// nothing is known.
func (s *state) forecast(c *outbound.Cost) (time.Time, error) {
	if !s.known() {
		return time.Time{}, nil
	}
	at, err := s.look().When(c)
	if !s.foretells() {
		s.ahead = nil // it is not to be kept
	}
	return latest(at, s.soonest), err
}

// known reports whether the clock tells of those in line and of nobody else.
func (s *state) known() bool { return s.clock.Known() && len(s.line.unused) == 0 }

// foretells reports whether a call may be refused by what the clock tells. Until a trip has ended it still counts the
// places that go back with it, and what else has come back.
func (s *state) foretells() bool { return s.known() && !s.changed && !s.returns }

const (
	// looks is how many calls in line the queue foretells anew for each that comes, on the average,
	// where calls ahead of it cancel or give units back.
	looks = 32
	// stays is for how many calls that come, besides as many as wait, a forecast stays: places round.
	stays = 1024
)

// piece is how many calls the queue looks at before it lets go of its lock. That takes 1 ms, or 13 ms of a window in a
// store. Tests change it.
var piece = 2048

// look returns the forecast for a call that comes now. While it would be too much work to foretell the line
// anew, or has been done for a piece only, the calls without a place do not count: they only make the call later.
func (s *state) look() *outbound.Forecast {
	l := &s.line
	unplaced := l.n - min(l.n, len(l.tickets))
	s.credit = min(s.credit, unplaced) + looks
	if next := s.uncounted; next != nil && (next.gone || l.hasPlace(next)) {
		s.ahead = nil // the line was faster
	}
	if s.ahead == nil || s.credit >= unplaced && s.seen-s.from > stays+uint64(l.n) {
		s.ahead = s.clock.Forecast(l.tickets)
		if s.credit < unplaced {
			ahead := s.ahead
			s.ahead, s.uncounted = nil, nil
			return ahead
		}
		s.seen, s.uncounted = l.seq, l.unplaced
		if l.unplaced != nil {
			s.seen = l.unplaced.seq - 1
		}
		s.from = s.seen
	}
	if s.seen == l.seq {
		return s.ahead
	}
	w := s.uncounted
	if w == nil {
		for w = l.last; w != nil && w.seq > s.seen && w.prev != nil && w.prev.seq > s.seen; {
			w = w.prev
		}
	}
	for most := piece; w != nil; w = w.next {
		if w.seq <= s.seen {
			continue
		}
		if most == 0 {
			s.uncounted = w
			return s.clock.Forecast(l.tickets)
		}
		most--
		s.credit = max(0, s.credit-1)
		_, _, _ = s.ahead.Next(&w.cost, w.by()) // who is too late does not count, and will be refused
		s.seen = w.seq
	}
	s.seen, s.uncounted = l.seq, nil
	return s.ahead
}

// admit returns why a new call must not wait, or nil. Then it is the next in line.
func (s *state) admit(w *waiter, now time.Time) error {
	s.spare = min(s.spare, s.line.n) + looks
	switch {
	case s.line.n >= s.config.MaxLen:
		var earliest time.Time
		if s.foretells() {
			var err error
			if earliest, err = s.forecast(&w.cost); err != nil {
				return err
			}
		}
		return s.throttled(earliest, now, ErrFull)
	case !s.foretells():
		w.untold = !w.deadline.IsZero()
		return nil
	case w.deadline.IsZero():
		_, err := s.clock.Earliest(&w.cost)
		return err
	}
	ahead := s.look()
	at, ok, err := ahead.Next(&w.cost, w.by())
	if err != nil {
		return err
	}
	if at = latest(at, s.soonest); !ok || w.misses(at) {
		if ok && ahead == s.ahead {
			s.ahead = nil // it counts
		}
		return s.throttled(at, now, w.why())
	}
	if ahead == s.ahead {
		s.seen = s.line.seq + 1
	}
	return nil
}

// check is a look at all calls in line, piece by piece, for those that miss their deadlines.
type check struct {
	ahead *outbound.Forecast
	next  *waiter // the call to look at; nil: all were looked at
	stale bool    // a call that was looked at has cancelled since, and those behind it may go sooner
	all   bool    // after a hold, a Resume or a change of limits; false: it refuses only those that are untold
}

// newCheck returns a check that begins.
func (s *state) newCheck(all bool) *check {
	return &check{ahead: s.clock.Forecast(s.line.tickets), next: s.line.first, all: all}
}

// tells reports whether to look now at the calls that are untold. It is the work of a look at all calls
// in line, so in a long one there have to be enough newcomers for that.
func (s *state) tells() bool {
	if s.line.untold == 0 || !s.foretells() || s.spare < s.line.n {
		return false
	}
	s.spare -= s.line.n
	return true
}

// keep keeps the forecast of a check that has ended for the calls that come.
func (s *state) keep(c *check) {
	if s.line.fit(); s.foretells() {
		s.ahead, s.uncounted, s.seen, s.from = c.ahead, nil, s.line.seq, s.line.seq
	}
}

// hopeless looks at so many calls, and returns those that miss their deadlines.
func (s *state) hopeless(c *check, most int, now time.Time) (all []refusal) {
	i := 0 // of the next place
	if c.next != nil {
		for w := c.next.prev; w != nil && i < len(s.line.tickets); w = w.prev {
			i++
		}
	}
	for w := c.next; w != nil; w = w.next {
		if most == 0 {
			c.next = w
			return all
		}
		most--
		var at time.Time
		var err error
		placed := i < len(s.line.tickets)
		if placed {
			at = s.clock.Due(s.line.tickets[i])
		} else {
			at, _, err = c.ahead.Next(&w.cost, w.by())
			at = latest(at, s.soonest)
		}
		switch {
		case err != nil:
			all = append(all, refusal{w, err})
		case (c.all || w.untold) && w.misses(at) && at.After(s.givesUp(w, now)): // the next call gets its place
			all = append(all, refusal{w, s.throttled(at, now, w.why())})
			continue
		case placed:
			i++
		}
		s.line.tell(w)
	}
	c.next = nil
	return all
}

// tooLate returns the calls that miss their deadlines at the last n places. A booking has the deadline of its first
// call, and books places far behind that where the queue catches up with other workers. And where a place was lost,
// each call has that of the next.
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
		if at := s.clock.Due(l.tickets[i]); w.misses(at) && at.After(s.givesUp(w, now)) { // the next call gets its place
			all = append(all, refusal{w, s.throttled(at, now, w.why())})
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
		if at, err := s.clock.Earliest(&w.cost); err == nil {
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
