package outbound

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// This file is for packages that wait for their callers, as queue and queue/jobs do. They book with
// a BookRequest, which returns Tickets and a Clock. The Clock says when a ticket's call may leave.

// BookRequest is what [Bucket.Book] does and what it returns, for packages that wait for their
// callers, such as a queue or a scheduler. It returns tickets, books reservations, and reads the
// bucket's clock, in one request to the bucket's store. A BookRequest can be used again, which
// saves allocations.
type BookRequest struct {
	// Unused are tickets that no call will use, in any order: Book sorts them. It undoes the latest
	// bookings, and returns what is safe of earlier ones.
	Unused []Ticket
	// Lost is how many of them were lost, because this process came to use them too late, and Late
	// how late the latest was. [Bucket.Observe] reports them, as EventLate.
	Lost int
	Late time.Duration
	// Move is a ticket to book again for its cost, Costs[0], because units were returned. If it is
	// the latest booking, and its call can leave as early or earlier, Book undoes it first. Otherwise
	// it stays as it is, and Book books nothing. If the store does not reply, as with a
	// [*StoreError], it is unknown whether it was undone: no call may use it, and it cannot be
	// returned. An error before the request leaves it as it was: an ended ctx, a negative duration,
	// an invalid cost without Unused. With a call in flight Book books no further Costs. The zero
	// Ticket stands for none.
	Move Ticket
	// Costs are the calls to book, in this order. If it is empty, Book only reads the clock.
	Costs []Cost
	// Wait is the longest that the first of them can wait.
	Wait time.Duration
	// Horizon is the longest that the rest can wait. Bookings stop at the first refusal.
	Horizon time.Duration
	// After is the shortest wait of the first, for a store that is far away: a reservation that is
	// due before its reply arrives is lost or late. A caller that books one call at a time sets it to
	// [Clock.Latency].
	After time.Duration
	// InJob is true if the calls are further requests of jobs, as [Bucket.InJob] reports: an
	// [InFlight] does not count them.
	InJob bool
	// Claim is what this process has booked while it had a backlog, as [store.Op.Claim] says: +Inf
	// when a backlog begins, 0 while there is none. When Book has booked something, it sets Claim to
	// that of the next booking.
	Claim float64
	// Weight is this process's weight, as [store.Op.Weight] says. If it is zero, the calls take no
	// share of what a window or a calendar frees at one time.
	Weight float64
	// Bid is this process's part in that, as [store.Op.Bid] says. Book sets it to that of the next
	// booking.
	Bid store.Bid
	// Headroom is the fraction of each limit, from 0 to less than 1, that the calls keep free for
	// other calls. It counts in whole units and slots, rounded down, in the limits that count the
	// call. Book then ignores Wait and Horizon beyond After: other calls would wait behind such a
	// reservation.
	Headroom float64

	// Tickets are the reservations, in order: at most one for each of Costs.
	Tickets []Ticket
	// Clock is the bucket's clock when the store replied.
	Clock Clock

	into   []store.Charge
	calls  []reports.Numbers
	back   []key.Booking
	booked uint64 // tickets so far
}

// Book carries the request out: it is Reserve of golang.org/x/time/rate for many calls at a time.
// If the first of Costs is refused, the error is a [*ThrottledError] or a [*CostError], as of
// Acquire. After any error there is no ticket. Use a ticket when [Clock.Ready] reports true, or
// return it in Unused.
func (b *Bucket) Book(ctx context.Context, k *BookRequest) error {
	clear(k.Tickets) // what is kept here would never be collected
	k.Tickets = k.Tickets[:0]
	if err := b.ready(ctx); err != nil {
		return err
	}
	if k.Wait < 0 || k.Horizon < 0 || k.After < 0 {
		return fmt.Errorf("%w: BookRequest: Wait %v, After %v or Horizon %v is negative", ErrInvalid, k.Wait, k.After, k.Horizon)
	}
	if !(k.Headroom >= 0 && k.Headroom < 1) {
		return fmt.Errorf("%w: BookRequest: Headroom %v is not from 0 to less than 1", ErrInvalid, k.Headroom)
	}
	if !(k.Bid.Calls >= 0 && k.Bid.Calls < 1e15) {
		k.Bid = store.Bid{}
	}
	s := core.Step{InJob: k.InJob, Step: key.Step{Back: k.back[:0], Waits: true, Op: store.Op{
		Action: store.Book, Wait: k.Wait, Horizon: k.Horizon, After: k.After, Claim: k.Claim, Weight: k.Weight, Bid: k.Bid, Headroom: k.Headroom, Into: k.into[:0], Slots: true,
	}}}
	if k.Headroom > 0 {
		ahead := k.After + k.After/8 // a slow clock rounds After up
		s.Wait, s.Horizon = min(k.Wait, ahead), min(k.Horizon, ahead)
	}
	var invalid error
	if len(k.Costs) > 0 && !k.Costs[0].valid() {
		invalid = &CostError{Key: b.core.Name, Cost: k.Costs[0], Err: ErrInvalid}
		if len(k.Unused) == 0 {
			return invalid
		}
	} else {
		k.calls = k.calls[:0]
		for i := range k.Costs {
			if !k.Costs[i].valid() { // what comes after it takes no slot
				break
			}
			k.calls = append(k.calls, k.Costs[i])
		}
		s.Calls = k.calls
	}
	// A reservation can only be undone when the later ones have been.
	k.Unused = slices.DeleteFunc(k.Unused, func(t Ticket) bool { return t.call == nil })
	slices.SortStableFunc(k.Unused, func(t, u Ticket) int { return t.call.Compare(u.call) })
	for _, t := range k.Unused {
		s.Return(t.call)
	}
	b.core.Lost(k.Lost, k.Late)
	sent := time.Now()
	var r core.Reply
	seen, err := b.core.Book(ctx, &s, k.Move.call, &r)
	clear(s.Back)
	k.back = s.Back
	replied := r.State.Speed > 0
	if replied {
		k.Clock = b.clock(&r, sent, &k.Clock)
		k.Clock.said.Headroom = k.Headroom
		if k.Clock.changes = seen.Changes; k.Clock.lates != seen.Lates {
			k.Clock.lates, k.Clock.early = seen.Lates, k.booked
		}
	}
	if replied && len(k.Costs) > 0 {
		k.Bid = r.Bid
	}
	if err != nil {
		return b.failure(err)
	}
	if len(r.Charges) > 0 {
		k.Claim = r.Claim
	}
	k.into = r.Charges
	b.core.Calls(k.calls, k.booked+1, &r, func(c *core.Call) { k.Tickets = append(k.Tickets, Ticket{c}) })
	k.booked += uint64(len(k.Tickets))
	return invalid
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

// Waiting registers waiting calls until stop is called, for packages that wait, as [Bucket.Book]
// is. Meanwhile f is called soon after a change by this process: a Hold, Resume, SetLimits, the end
// of a call in flight, or a returned cost. It runs in any goroutine, with no lock of the bucket
// held. f must not block: the call that changes something may return only after f, and its caller
// may hold locks. A late answer holds that of its permit, so f must not use one. To watch a bucket
// there is [Bucket.Observe].
func (b *Bucket) Waiting(f func()) (stop func()) {
	if b.isZero() {
		return func() {}
	}
	return b.core.Waiting(f)
}

// InJob reports whether ctx is that of a further request of a job that is in flight in this bucket:
// see [Permit.AcquireIn]. It is for packages that wait. Such a call is in flight already, and must
// not wait behind calls that may wait for the job. Book it with [BookRequest.InJob].
func (b *Bucket) InJob(ctx context.Context) bool { return !b.isZero() && b.inJob(ctx) }

// Shared reports whether the bucket's state is in a store, so that each operation is a request. It
// is for packages that wait.
func (b *Bucket) Shared() bool {
	return b != nil && b.core.Remote()
}

// Reservations returns the bucket in which a scheduler reserves times for calls that come later, as
// package jobs does. It has the limits of b without an [InFlight], and its own levels and holds.
// Its state is where b's is, in this process or in the same store. Errors name it by b's key.
//
// Reservations returns the same bucket until this process learns of other limits from a reply for
// b. Then it returns one with those limits, and earlier reservations are void. If b has their
// limits again, reservations in a store are valid again. A hold or a Resume of b does not reach it.
// It is nil if b has only ever had an InFlight.
func (b *Bucket) Reservations() *Bucket {
	if b.isZero() {
		return nil
	}
	own, _ := b.core.Reservations(func(limits []spec.Limit, in store.Store, name string) core.Bucket {
		next := new(Bucket)
		next.core.Init(b.core.Name, limits, in, name)
		return next
	}).(*Bucket)
	return own
}
