// Package clock is what a reply says of a key: its clock, its levels and its limits, and when calls
// can leave by them.
package clock

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Clock is what one reply says. Package outbound has the docs of most methods. What is a Ticket
// there is the time of a reservation here.
type Clock struct {
	State    store.State
	Limits   *key.Limits   // that have decided: a share of Whole while a store is unavailable
	Whole    *key.Limits   // in force
	At       time.Time     // of State
	Back     time.Duration // how long such a reply normally takes to be here
	Shared   bool          // the state is in a store
	InFlight bool          // there is a limit on calls in flight
	Headroom float64       // the fraction of each limit that the calls keep free

	number   int64         // of the limits
	before   int64         // the number before, as far as this process knows
	stands   time.Duration // a change of those limits leaves earlier reservations
	received time.Time     // when it was here
	fresh    time.Duration // for how long it may be relied upon from then
}

// Of returns what a reply says that is here now, to a request that was sent before. older is the
// clock before.
func Of(r *key.Reply, sent, now time.Time, shared bool, older *Clock) Clock {
	decided, state := r.Decided()
	k := Clock{State: *state, Limits: decided, Whole: &r.Force.Limits, At: now, Shared: shared,
		number: r.Number, before: older.before, stands: older.stands, received: now, fresh: key.MinReplyAge}
	if older.number != k.number {
		k.before, k.stands = older.number, Sure(&older.State)
	}
	if !r.When.IsZero() {
		// A bad estimate stays within the request's time. An answer out of a cache counts as one from
		// when it was asked for: that makes nothing due earlier.
		k.At = clamp(r.When, sent, now)
		k.Back = now.Sub(k.At) // of this one, if no other is given
		if r.Received.After(r.When) {
			k.Back = min(r.Received.Sub(r.When), max(store.MaxReplyAge, now.Sub(sent)))
		}
		k.fresh = min(max(key.MinReplyAge, k.At.Sub(sent)+k.Back), store.MaxReplyAge)
	}
	return k
}

// Sure returns until when reservations stand that were made at a state, whatever limits are set.
func Sure(s *store.State) time.Duration { return s.Dial() + store.MaxReplyAge }

// clamp returns the time between from and to that is nearest to t.
func clamp(t, from, to time.Time) time.Time {
	switch {
	case t.Before(from):
		return from
	case t.After(to):
		return to
	}
	return t
}

// InTime reports whether a reply that admits a call is early enough, to a request of that time. A
// shared store may have repeated the reply, or the network delayed it. By then other calls may have
// left after the call's time, and together with them it would be one too many.
func InTime(r *key.Reply, asked time.Time) bool {
	if r.When.IsZero() {
		return true
	}
	now := time.Now()
	if now.Sub(asked) <= store.BookingGrace {
		return true
	}
	_, late := r.State.Due(r.Charges[0].Place)
	return late+now.Sub(clamp(r.Received, asked, now)) <= store.BookingGrace
}

// Holds reports whether a charge is still a reservation. sure is that of its booking.
func (k *Clock) Holds(c *store.Charge, sure time.Duration) bool {
	if c.Number == k.before {
		sure = max(sure, k.stands)
	}
	if c.Born != k.State.Born || c.Number != k.number && c.Place > sure {
		return false
	}
	in, late := k.State.Due(c.Place)
	return !c.Void(key.Later(k.State.Unix, in) - late)
}

// Due returns when the call of a reservation may leave.
func (k *Clock) Due(place time.Duration) time.Time {
	in, late := k.State.Due(place)
	if in == 0 {
		return k.At.Add(-late)
	}
	return k.At.Add(in)
}

// Ready reports whether the call of a reservation may leave at the time now, and how late it is.
func (k *Clock) Ready(place time.Duration, now time.Time) (ready bool, late time.Duration) {
	in, late := k.State.Due(place)
	if !k.Shared {
		// The bucket of this process has just been asked: what it did not
		// allow then, it may have forbidden since.
		return in == 0, late
	}
	since := now.Sub(k.At)
	return in <= since && now.Sub(k.received) <= k.fresh, late + max(0, since-in)
}

// Stale reports whether the clock will be too old when a reservation is due.
func (k *Clock) Stale(place time.Duration) bool {
	return k.Shared && k.Due(place).Sub(k.received) > k.fresh
}

// Same reports whether plans of an older reply still hold.
func (k *Clock) Same(older *Clock) bool {
	s, o := &k.State, &older.State
	return s.Born == o.Born && s.Epoch == o.Epoch && k.number == older.number && (s.Rem <= 0 || s.At+s.Rem == o.At+o.Rem)
}

// Lacks reports whether a call of this cost exceeds the part of the limits that has decided.
func (k *Clock) Lacks(c *reports.Numbers) bool {
	return k.Limits != nil && k.Limits != k.Whole && k.Limits.Lacks(c, k.Headroom)
}

// Reopens returns the longest time until each window and calendar can admit one more call.
func (k *Clock) Reopens(c *reports.Numbers) (most time.Duration) {
	if k.Limits == nil {
		return 0
	}
	for i := range k.Limits.Law {
		l := &k.Limits.Law[i]
		next, ok := k.Limits.Period(i, k.State.Unix)
		switch n := l.Takes(c[l.Unit]); {
		case !l.Parted() || n <= 0 || l.Fits(k.State.Level[i]+n):
		case ok:
			most = max(most, next)
		default:
			most = max(most, k.State.Real(l.Window))
		}
	}
	return most
}

// Clears returns how long until all reservations have left and the leaky limits are empty.
func (k *Clock) Clears() time.Duration {
	if k.Limits == nil {
		return 0
	}
	w := max(0, k.State.Last)
	for i := range k.Limits.Law {
		if l := &k.Limits.Law[i]; !l.Parted() {
			w = max(w, l.Above(k.State.Level[i], 0))
		}
	}
	return k.State.Real(w)
}

// Tolerance returns how late a call may leave after its reservation.
func (k *Clock) Tolerance(asked time.Duration) time.Duration {
	if k.Whole == nil {
		return cmp.Or(max(0, asked), shortTolerance)
	}
	own, most := 10*shortTolerance, maxWait
	unit, drains := maxWait, maxWait
	for i := range k.Whole.Law { // also while a share decides: late calls come in addition to those of all processes
		l := &k.Whole.Law[i]
		if l.Window != 0 {
			own = shortTolerance
		}
		if l.Window > 0 && l.Parted() {
			most = shortTolerance
		}
		if l.Rate > 0 && l.Above(l.Capacity, 0) < drains {
			drains, unit = l.Above(l.Capacity, 0), l.Above(1, 0)
		}
	}
	if asked > 0 {
		return min(asked, most)
	}
	return min(max(unit/10, shortTolerance), own)
}

const shortTolerance = jitter / 2

// ticketText is how a ticket is written: the version of the text, the life of the bucket, the
// number of its limits and the reservation.
const ticketText = "1-%x:%x:%x"

// Text returns a reservation as text.
func Text(c *store.Charge) string {
	return fmt.Sprintf(ticketText, int64(c.Born), c.Number, int64(c.Place))
}

// DueText returns when the reservation of a text is due, if it still is one.
func (k *Clock) DueText(text string) (at time.Time, ok bool) {
	born, number, place, ok := readText(text)
	if !ok || born != k.State.Born {
		return time.Time{}, false
	}
	if number != k.number && (number != k.before || place > k.stands) {
		return time.Time{}, false
	}
	// Stores round times, some to the microsecond.
	if last := key.Later(k.State.Dial(), max(0, k.State.Last)); place > key.Later(last, Rounded) {
		return time.Time{}, false
	}
	in, late := k.State.Due(place)
	return k.At.Add(in - late), true
}

func readText(text string) (born time.Duration, number int64, place time.Duration, ok bool) {
	_, err := fmt.Sscanf(text, ticketText, &born, &number, &place)
	return born, number, place, err == nil && fmt.Sprintf(ticketText, int64(born), number, int64(place)) == text // there is one way to write it
}

// Rounded is by how much a time may seem to move, because stores round times, some to the
// microsecond.
const Rounded = time.Millisecond

const (
	maxWait = key.Forever
	jitter  = spec.Jitter
)
