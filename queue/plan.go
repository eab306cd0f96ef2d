package queue

import (
	"math"
	"sort"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The queue books places ahead for the calls at its head. Two marks say when: it books
// when a call has no place and the last place is due within the low mark, and then books
// places that are due within the high mark. With one mark every call would cost a trip.
// Booking only when the call before has left would lose the timers' lateness each time.
const (
	low      = 5 * time.Millisecond  // the low mark, without the time of a trip
	span     = 10 * time.Millisecond // from the low mark to the high one
	maxBatch = 4096                  // calls in one trip

	// slotCheck is how often the queue asks while its first call waits for a slot. A permit
	// may have been dropped without Done.
	slotCheck = time.Second

	// newsCheck is how often the queue asks a store while its first place is far away.
	// Another worker may have changed the limits or ended a hold.
	newsCheck = 10 * time.Second

	// mostWasted is how many trips in a row may bring no place in time before the queue pauses
	// between them. Fewer pause it enough by themselves.
	mostWasted = 3

	// retry is how long the queue pauses at least if a calendar books no further ahead, or until a
	// call can go if that is sooner.
	retry = 100 * time.Millisecond

	// farthest is how long a call waits if neither MaxWait nor its ctx says it. If some fault made
	// a level wrong, the queue would stand still for years.
	farthest = 24 * time.Hour

	// rounding is how much later than its deadline a call may go. Stores round waits up, some
	// to the microsecond, and each place counts from the one before.
	rounding = 10 * time.Microsecond

	forever = time.Duration(math.MaxInt64)
)

// state is all that the queue decides by, besides the time. Its methods decide: they make no trip,
// and answer no call.
type state struct {
	key    string // of the bucket
	shared bool   // the bucket is in a store
	config Config

	line    waiters
	clock   outbound.Clock // as of the last trip
	trips   trips
	head    head
	moving  outbound.Ticket // the place that the trip under way books anew
	news    int             // what has come back, or has changed, since the last trip that has ended began
	credit  int             // how many calls may be looked at again
	granted int             // how many places the last booking got
	booked  float64         // units booked since the backlog began; 0: there is none
}

// head is what the first call without a place waits for. The zero value: it is booked with the next
// trip.
type head struct {
	until   time.Time                // book nothing before; zero: book
	soonest time.Time                // calls without a place go no sooner, although none may be booked for then yet; zero: they may
	full    *outbound.ThrottledError // the bucket's refusal, while it waits for a slot; nil: it does not
	wasted  int                      // trips that brought no place in time, since the last call went
}

// free makes the queue ask again. A store that brings no place in time still has its pause.
func (h *head) free() {
	if h.full != nil || !h.soonest.IsZero() {
		*h = head{wasted: h.wasted}
	}
}

// tolerance is how late a call may leave.
func (s *state) tolerance() time.Duration { return s.clock.Tolerance(s.config.Tolerance) }

// dueIn is how long until the place is due.
func (s *state) dueIn(t outbound.Ticket, now time.Time) time.Duration { return s.clock.Due(t).Sub(now) }

// firstIn is how long until the first call goes, as [Stats.NextIn] has it.
func (s *state) firstIn(now time.Time) time.Duration {
	if t, ok := s.place(); ok {
		return max(0, s.dueIn(t, now))
	}
	if len(s.line.tickets) == 0 && s.head.soonest.After(now) {
		return s.head.soonest.Sub(now)
	}
	return -1
}

// lastIn is how long until the last place is due; 0: there is none.
func (s *state) lastIn(now time.Time) time.Duration {
	if n := len(s.line.tickets); n > 0 {
		return s.dueIn(s.line.tickets[n-1], now)
	}
	return 0
}

// toBook decides what to book and fills in the booking. It returns the first call to book
// for, or nil if there is nothing to book.
func (s *state) toBook(now time.Time, k *outbound.Booking) (first *waiter) {
	k.Costs, k.Move = k.Costs[:0], outbound.Ticket{}
	l := &s.line
	lowMark, last := s.trips.lowMark(), s.lastIn(now)
	switch {
	case s.news > 0 && len(l.tickets) == 1 && l.first != nil && last > lowMark:
		// Units may have come back, and bring the only place nearer.
		first, k.Move = l.first, l.tickets[0]
		k.Costs = append(k.Costs, first.cost)
	case l.unplaced == nil || now.Before(s.head.until):
		return nil
	case last > lowMark && (last > lowMark+s.trips.wayBack || s.hearIn(now) > 0):
		// It is too early. If there is a trip now anyway, though, the next may be too late.
		return nil
	default:
		first = l.unplaced
		most := s.mostCalls()
		for w := first; w != nil && len(k.Costs) < most; w = w.next {
			k.Costs = append(k.Costs, w.cost)
		}
	}
	k.Wait, k.Horizon, k.After = within(s.expires(first), now), lowMark+span+s.trips.wayBack, s.trips.wayBack
	if s.head.wasted > 1 && s.shared { // the store tells too short a way back; a whole trip is longer
		k.After = max(k.After, s.trips.mean)
	}
	k.Claim = s.claim(k)
	return first
}

// mostCalls is for how many calls the queue books: for half as many again as got places the
// last time, because asking in vain costs time as well.
func (s *state) mostCalls() int {
	if s.shared && s.trips.mean == 0 {
		return 1 // the store may be far away, and the place go back for that
	}
	return min(maxBatch, 16+s.granted*3/2)
}

// claim is the booking's Claim, by which workers with a backlog have equal shares. Without
// it the workers close to the store would have most of a busy bucket. One call is no
// backlog, and a place that is booked anew was counted before.
func (s *state) claim(k *outbound.Booking) float64 {
	switch {
	case k.Move != outbound.Ticket{} || len(k.Costs) == 1:
		return 0
	case s.booked == 0:
		return math.Inf(1) // the backlog begins
	}
	return s.booked
}

// hearIn is how long until the first place is due, or until the queue must hear the clock
// again because it will be too old when a later place is due. With a store that is far away
// the first place that needs that is hardly ever the first of all.
func (s *state) hearIn(now time.Time) time.Duration {
	t := s.line.tickets
	if len(t) == 0 {
		return forever
	}
	in := s.dueIn(t[0], now)
	if i := sort.Search(len(t), func(i int) bool { return s.clock.Stale(t[i]) }); i < len(t) {
		in = min(in, s.dueIn(t[i], now)-s.trips.lowMark())
	}
	return in
}

// newsIn is how long until the queue asks for news because its first place is far away. A
// bucket in this process tells of changes by itself.
func (s *state) newsIn(now time.Time) time.Duration {
	if !s.shared || len(s.line.tickets) == 0 {
		return forever
	}
	return s.trips.ended.Add(newsCheck).Sub(now)
}

// needsTrip reports whether the queue needs a trip now, and whether that is only for news:
// then it may fail. first is what toBook has returned.
func (s *state) needsTrip(first *waiter, now time.Time) (needed, onlyNews bool) {
	if first != nil || s.news > 0 || len(s.line.unused) > 0 || s.hearIn(now) <= 0 {
		return true, false
	}
	needed = s.newsIn(now) <= 0
	return needed, needed
}

// nextIn is how long until there is something to do, if no trip is under way.
func (s *state) nextIn(now time.Time) time.Duration {
	l := &s.line
	if s.news > 0 || len(l.unused) > 0 || len(l.tickets) > l.n {
		return 0
	}
	next := min(s.hearIn(now), s.newsIn(now))
	if l.unplaced == nil {
		return next
	}
	// Calls behind the first have later deadlines, or a ctx that ends then.
	next = min(next, max(0, s.expires(l.unplaced).Sub(now)))
	return min(next, max(0, s.head.until.Sub(now), s.lastIn(now)-s.trips.lowMark()))
}

// nextOnTrip is how long until the first call may go during a trip. ok is false if the call
// needs what the trip brings.
func (s *state) nextOnTrip(now time.Time) (in time.Duration, ok bool) {
	t, ok := s.place()
	if !ok {
		return 0, false
	}
	in = s.dueIn(t, now)
	ready, _ := s.clock.Ready(t, now)
	return in, ready || in > 0
}

// place returns the first place. ok is false if there is none, if the trip under way books it anew,
// or if its call has cancelled and the next costs something else: then it goes back after the trip
// with all places behind it.
func (s *state) place() (t outbound.Ticket, ok bool) {
	l := &s.line
	if len(l.tickets) == 0 || l.tickets[0] == s.moving || l.first != nil && l.first.cost != l.tickets[0].Cost() {
		return t, false
	}
	return l.tickets[0], true
}

// failsWith reports whether a call with the place t fails when a trip fails, because it
// would need another one to go.
func (s *state) failsWith(t outbound.Ticket, now time.Time) bool {
	in := s.dueIn(t, now)
	return in <= s.trips.lowMark() && (in <= 0 || s.clock.Stale(t))
}

// bookableAt is when the queue tries again to book a place for w, which can go after so long: a
// calendar books it only when its period is over, if w waits for the one after the next, and a
// fixed window when all of it comes back.
func (s *state) bookableAt(w *waiter, after time.Duration, now time.Time) time.Time {
	soonest, at := now.Add(min(retry, after)), time.Time{}
	if s.clock.Known() {
		at, _, _ = s.clock.Earliest(&w.cost, new(outbound.Cost))
	}
	if news := now.Add(newsCheck); s.shared && at.After(news) {
		at = news // another worker may have changed the limits
	}
	return latest(soonest, at)
}

// within is the longest wait that ends by the deadline.
func within(deadline, now time.Time) time.Duration {
	return min(max(0, deadline.Sub(now)), forever-rounding) + rounding
}
