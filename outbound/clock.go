package outbound

import (
	"cmp"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Clock is what a reply reported of a bucket: its clock, its levels and its limits. A [BookRequest]
// carries it.
type Clock struct {
	core     *core
	state    store.State
	limits   *key.Limits // that have decided: a share of whole while a store is unavailable
	whole    *key.Limits // in force
	number   int64
	before   int64         // the number before, as far as this process knows
	stands   time.Duration // a change of those limits leaves earlier reservations
	at       time.Time     // of state
	back     time.Duration // how long such a reply normally takes to be here
	received time.Time     // when it was here
	fresh    time.Duration // for how long it may be relied upon from then
	shared   bool
	changes  uint64 // of the bucket, before the request
	lates    uint64 // calls that were sent late, before the request
	early    uint64 // tickets up to this one were booked before the last of them
	headroom float64
}

// clock returns what the reply to a request of that time reports. older is the clock before.
func (b *Bucket) clock(r *reply, sent time.Time, older *Clock) Clock {
	now := time.Now().Add(-r.Slept)
	k := Clock{core: &b.core, whole: &r.Force.Limits, number: r.Number, shared: b.remote()}
	decided, state := r.Decided()
	k.limits, k.state = decided, *state
	k.lates, k.early = older.lates, older.early
	if k.before, k.stands = older.before, older.stands; older.number != k.number {
		k.before, k.stands = older.number, older.state.Dial()+store.MaxReplyAge
	}
	k.at, k.received, k.fresh = now, now, key.MinReplyAge
	if !r.When.IsZero() {
		// A bad estimate stays within the request's time. An answer from before it, out of a cache, is
		// taken for one of the time at which it was asked for: that makes nothing due earlier.
		k.at = clamp(r.When, sent, now)
		k.back = now.Sub(k.at) // of this one, if no other is given
		if r.Received.After(r.When) {
			k.back = min(r.Received.Sub(r.When), max(store.MaxReplyAge, now.Sub(sent)))
		}
		k.fresh = min(max(key.MinReplyAge, k.at.Sub(sent)+k.back), store.MaxReplyAge)
	}
	return k
}

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

// Known reports whether there was a reply at all.
func (k *Clock) Known() bool { return k.core != nil }

// Changed reports whether [Bucket.Waiting] was notified since the request began, except of what the
// request itself has reported. A caller that was not yet registered has missed it.
func (k *Clock) Changed() bool { return k.core.slowPath().Reports.Changes() != k.changes }

// Holds reports whether the ticket still names a reservation. It is void after a Resume, and after
// a SetLimits unless it was due within a second. It is also void if a hold or a slow-down has moved
// it out of a calendar period, or if an [AnswerSent] has come since. Then return it, and book its
// call again.
func (k *Clock) Holds(t Ticket) bool {
	c := &t.call.charge[0]
	stands := t.call.sure
	if c.Number == k.before {
		stands = max(stands, k.stands)
	}
	if t.call.order <= k.early || c.Born != k.state.Born || c.Number != k.number && c.Place > stands {
		return false
	}
	in, late := k.state.Due(c.Place)
	return !c.Void(later(k.state.Unix, in) - late)
}

// Due returns when the ticket's call may leave, by this clock.
func (k *Clock) Due(t Ticket) time.Time {
	in, late := k.state.Due(t.call.charge[0].Place)
	if in == 0 {
		return k.at.Add(-late)
	}
	return k.at.Add(in)
}

// HeldUntil returns when the last hold or pause ends or has ended, or a time some 10 s ago.
func (k *Clock) HeldUntil() time.Time { return k.at.Add(k.state.Rem) }

// Latency returns the normal latency of a reply from the store. A reservation that is due sooner is
// late when the process learns of it. If the store does not report what is normal, Latency is the
// latency of this reply. It is 0 for a store in this process, and for one that does not report the
// time of its replies.
func (k *Clock) Latency() time.Duration { return k.back }

// Ready reports whether the ticket's call may leave at the time now, and how late it is, with a
// lateness before a hold included. Late counts from the reservation, even if its reply arrived
// later. A due call becomes ready only with a recent clock: otherwise book, or read the clock. The
// call learns of all holds that this clock includes, so that a refusal by the API counts as a new
// one. Do not ask for a ticket that a BookRequest is about to move.
func (k *Clock) Ready(t Ticket, now time.Time) (ready bool, late time.Duration) {
	c := &t.call.charge[0]
	c.Epoch = max(c.Epoch, k.state.Epoch)
	in, late := k.state.Due(c.Place)
	if !k.shared {
		// The bucket of this process has just been asked: what it did not
		// allow then, it may have forbidden since.
		ready = in == 0
	} else {
		since := now.Sub(k.at)
		late += max(0, since-in)
		ready = in <= since && now.Sub(k.received) <= k.fresh
		if t.call.slot != nil && !t.call.core.slots().Holds() {
			ready, late = true, maxWait // another process may have its slot
		}
	}
	return ready, late
}

// Stale reports whether the clock will be too old when the ticket's call is due, so that it must be
// read again before. A call that must read the clock when it is due is never stale.
func (k *Clock) Stale(t Ticket) bool {
	return k.shared && k.Due(t).Sub(k.received) > k.fresh
}

// Same reports whether plans of an older reply still hold: since then there was no hold, no Resume,
// no change of limits, and no call that was sent late.
func (k *Clock) Same(older *Clock) bool {
	s, o := &k.state, &older.state
	return s.Born == o.Born && s.Epoch == o.Epoch && k.number == older.number && k.early == older.early &&
		(s.Rem <= 0 || s.At+s.Rem == o.At+o.Rem)
}

// Lacks reports whether a call of this cost exceeds the part of the limits that a fallback uses
// while a store is unavailable. Such a call fails with the store's error.
func (k *Clock) Lacks(c *Cost) bool {
	return k.limits != nil && k.limits != k.whole && k.limits.Lacks((*reports.Numbers)(c), k.headroom)
}

// Reopens returns the longest time until each window and calendar can admit one more call, after
// calls of a total cost c. A call may wait as long only because one unit left before it. It is 0 if
// windows and calendars have capacity for all of c, and if all limits leak.
func (k *Clock) Reopens(c *Cost) (most time.Duration) {
	if k.limits == nil {
		return 0
	}
	for i := range k.limits.Law {
		l := &k.limits.Law[i]
		next, ok := k.limits.Period(i, k.state.Unix)
		switch n := l.Takes(c[l.Unit]); {
		case !l.Parted() || n <= 0 || l.Fits(k.state.Level[i]+n):
		case ok:
			most = max(most, next)
		default:
			most = max(most, k.state.Real(l.Window))
		}
	}
	return most
}

// Held reports whether a hold lasts at a time, and why, as [Answer.Reason] has it.
func (k *Clock) Held(at time.Time) (held bool, reason string) {
	if held = k.state.Rem > at.Sub(k.at); held {
		reason = reasonOf(k.state.Why)
	}
	return held, reason
}

// Speed returns the speed of the bucket's clock: 1, or less while it recovers from refusals.
func (k *Clock) Speed() float64 { return k.state.Speed }

// Clears returns how long until a hold is over, all reservations have left and the leaky limits are
// empty, if no call comes meanwhile. Windows and calendars may still be full then.
func (k *Clock) Clears() time.Duration {
	if k.limits == nil {
		return 0
	}
	w := max(0, k.state.Last)
	for i := range k.limits.Law {
		if l := &k.limits.Law[i]; !l.Parted() {
			w = max(w, l.Above(k.state.Level[i], 0))
		}
	}
	return k.state.Real(w)
}

// Tolerance returns how late a call may leave after its reservation. It is the asked time. With a
// limit made by [Window] or [FixedWindow] it is at most 5 ms, because a whole late burst would
// exceed it. If 0 is asked, it is a tenth of the time that a unit takes to leak from the limit that
// drains soonest, in 5 to 50 ms. Calendars alone have 50 ms. With a limit made by [Per],
// [PerSecond], [PerMinute], [PerHour] or Window it is 5 ms, half of the 10 ms that such a limit
// keeps for arrivals.
func (k *Clock) Tolerance(asked time.Duration) time.Duration {
	if k.whole == nil {
		return cmp.Or(max(0, asked), shortTolerance)
	}
	own, most := 10*shortTolerance, maxWait
	unit, drains := maxWait, maxWait
	for i := range k.whole.Law { // also while a share decides: late calls come in addition to those of all processes
		l := &k.whole.Law[i]
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
