package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/core"
)

// Clock is what a reply reported of a bucket: its clock, its levels and its limits. A [BookRequest]
// carries it.
type Clock struct {
	core    *core.Core
	said    clock.Clock
	changes uint64 // of the bucket, before the request
	lates   uint64 // calls that were sent late, before the request
	early   uint64 // tickets up to this one were booked before the last of them
}

// clock returns what the reply to a request of that time reports. older is the clock before.
func (b *Bucket) clock(r *core.Reply, sent time.Time, older *Clock) Clock {
	said := clock.Of(&r.Reply, sent, time.Now().Add(-r.Slept), b.core.Remote(), &older.said)
	said.InFlight = r.Flight != nil
	return Clock{core: &b.core, said: said, lates: older.lates, early: older.early}
}

// Known reports whether there was a reply at all.
func (k *Clock) Known() bool { return k.core != nil }

// Changed reports whether [Bucket.Waiting] was notified since the request began, except of what the
// request itself has reported. A caller that was not yet registered has missed it.
func (k *Clock) Changed() bool { return k.core.Changes() != k.changes }

// Holds reports whether the ticket still names a reservation. It is void after a Resume, and after
// a SetLimits unless it was due within a second. It is also void if a hold or a slow-down has moved
// it out of a calendar period, or if an [AnswerSent] has come since. Then return it, and book its
// call again.
func (k *Clock) Holds(t Ticket) bool {
	return t.call.Order() > k.early && t.call.Booked(&k.said)
}

// Due returns when the ticket's call may leave, by this clock.
func (k *Clock) Due(t Ticket) time.Time { return t.call.Due(&k.said) }

// HeldUntil returns when the last hold or pause ends or has ended, or a time some 10 s ago.
func (k *Clock) HeldUntil() time.Time { return k.said.At.Add(k.said.State.Rem) }

// Latency returns the normal latency of a reply from the store. A reservation that is due sooner is
// late when the process learns of it. If the store does not report what is normal, Latency is the
// latency of this reply. It is 0 for a store in this process, and for one that does not report the
// time of its replies.
func (k *Clock) Latency() time.Duration { return k.said.Back }

// Ready reports whether the ticket's call may leave at the time now, and how late it is, with a
// lateness before a hold included. Late counts from the reservation, even if its reply arrived
// later. A due call becomes ready only with a recent clock: otherwise book, or read the clock. The
// call learns of all holds that this clock includes, so that a refusal by the API counts as a new
// one. Do not ask for a ticket that a BookRequest is about to move.
func (k *Clock) Ready(t Ticket, now time.Time) (ready bool, late time.Duration) {
	return t.call.Ready(&k.said, now)
}

// Stale reports whether the clock will be too old when the ticket's call is due, so that it must be
// read again before. A call that must read the clock when it is due is never stale.
func (k *Clock) Stale(t Ticket) bool { return t.call.Stale(&k.said) }

// Same reports whether plans of an older reply still hold: since then there was no hold, no Resume,
// no change of limits, and no call that was sent late.
func (k *Clock) Same(older *Clock) bool {
	return k.early == older.early && k.said.Same(&older.said)
}

// Lacks reports whether a call of this cost exceeds the part of the limits that a fallback uses
// while a store is unavailable. Such a call fails with the store's error.
func (k *Clock) Lacks(c *Cost) bool { return k.said.Lacks(c.numbers()) }

// Reopens returns the longest time until each window and calendar can admit one more call, after
// calls of a total cost c. A call may wait as long only because one unit left before it. It is 0 if
// windows and calendars have capacity for all of c, and if all limits leak.
func (k *Clock) Reopens(c *Cost) (most time.Duration) { return k.said.Reopens(c.numbers()) }

// Held reports whether a hold lasts at a time, and why, as [Answer.Reason] has it.
func (k *Clock) Held(at time.Time) (held bool, reason string) {
	if held = k.said.State.Rem > at.Sub(k.said.At); held {
		reason = reasonOf(k.said.State.Why)
	}
	return held, reason
}

// Speed returns the speed of the bucket's clock: 1, or less while it recovers from refusals.
func (k *Clock) Speed() float64 { return k.said.State.Speed }

// Clears returns how long until a hold is over, all reservations have left and the leaky limits are
// empty, if no call comes meanwhile. Windows and calendars may still be full then.
func (k *Clock) Clears() time.Duration { return k.said.Clears() }

// Tolerance returns how late a call may leave after its reservation. It is the asked time. With a
// limit made by [Window] or [FixedWindow] it is at most 5 ms, because a whole late burst would
// exceed it. If 0 is asked, it is a tenth of the time that a unit takes to leak from the limit that
// drains soonest, in 5 to 50 ms. Calendars alone have 50 ms. With a limit made by [Per],
// [PerSecond], [PerMinute], [PerHour] or Window it is 5 ms, half of the 10 ms that such a limit
// keeps for arrivals.
func (k *Clock) Tolerance(asked time.Duration) time.Duration { return k.said.Tolerance(asked) }

// Earliest returns a lower bound of the time when a call of this cost can leave, after all
// reservations and after waiting calls that cost ahead in all. With one leaky limit it is exact. It
// does not cover limits on calls in flight. If [Clock.Lacks] is true for the call, it is the time
// of the reply, because the store may be available again at any time. limit is what the call waits
// for, as in [ThrottledError]. A cost above a capacity is a [*CostError]. The Headroom of the
// BookRequest counts, as if no other call came.
func (k *Clock) Earliest(c, ahead *Cost) (at time.Time, limit string, err error) {
	return k.Bound(c, ahead, ahead, time.Time{}, false)
}

// Bound is [Clock.Earliest] behind waiting calls that cost all. Those that cost sure certainly
// leave in time. The rest may give up from until on, and before that the call waits for them, too.
// mixed is true if their costs differ.
func (k *Clock) Bound(c, sure, all *Cost, until time.Time, mixed bool) (at time.Time, limit string, err error) {
	if err := check(k.said.Whole, k.core.Name, c, k.said.Headroom); err != nil {
		return at, "", err
	}
	at, i := k.said.Bound(c.numbers(), sure.numbers(), all.numbers(), until, mixed)
	if i >= 0 {
		limit = k.core.Label(k.said.Whole, i)
	}
	return at, limit, nil
}

// Surely reports whether a call of this cost certainly leaves by a time, after all reservations and
// after n waiting calls that cost ahead in all. alike is true if each of them costs as much as this
// one. If the result is false, the call may still be in time. With several leaky limits and calls
// of several costs, Surely adds up the waits for each limit. If a window lacks capacity for the
// calls, Surely counts on half of it at a time. It counts on all of it if the window is the only
// limit and all calls cost the same. With a limit [InFlight] the result is false.
func (k *Clock) Surely(c, ahead *Cost, n int, alike bool, by time.Time) bool {
	return k.said.Surely(c.numbers(), ahead.numbers(), n, alike, by)
}

// DueText returns when the reservation of a ticket is due by this clock, from the ticket's String,
// with the holds that this clock includes. A hold moves all reservations alike: one that had passed
// by an hour when it began stays an hour before the end of it. ok is false if the text is invalid
// or later than the last reservation. It is also false after a [Bucket.Resume], a
// [Bucket.SetLimits] or a [Bucket.Hold] that has made the ticket void.
func (k *Clock) DueText(ticket string) (at time.Time, ok bool) {
	if !k.Known() {
		return time.Time{}, false
	}
	return k.said.DueText(ticket)
}

// Ticket is the handle of a reservation that [Bucket.Book] has made, for packages that wait for
// their callers. The tickets of package queue/jobs are its String. Callers get a [Reservation]
// instead.
type Ticket struct{ call *core.Call }

// Permit makes the ticket the permit of a call, when the call leaves.
func (t Ticket) Permit() Permit { return Permit{in: core.Permit{Call: t.call}} }

// Cost returns what the ticket was booked for.
func (t Ticket) Cost() Cost { return t.call.Cost() }

// String returns the ticket as text of a few dozen characters, for a header or a column outside of
// this process. [Clock.DueText] returns when it is due. The text grants nothing. That of the zero
// Ticket is empty.
func (t Ticket) String() string {
	if t.call == nil {
		return ""
	}
	return t.call.Text()
}
