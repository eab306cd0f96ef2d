package outbound

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

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
