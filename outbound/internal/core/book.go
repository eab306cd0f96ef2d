package core

import (
	"cmp"
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
)

// Return has the step return a call that is booked, unless it has ended.
func (s *Step) Return(k *Call) {
	if k.once(Done | void) {
		s.Back = append(s.Back, k.booking())
		s.freed += k.slot.Drop()
	}
}

// Seen counts what a caller of Book knows of.
type Seen struct {
	Changes uint64 // see Core.Changes
	Lates   uint64 // calls that were sent late
}

// Book carries a step out for a caller that waits. It books move again for the cost of the only one
// of its calls, unless move is nil. The error is that of book. seen counts what was before the
// request.
func (b *Core) Book(ctx context.Context, s *Step, move *Call, r *Reply) (seen Seen, err error) {
	p := b.slowPath()
	if move != nil {
		s.Move = &move.charge[0]
		if move.slot != nil { // further calls would have none
			s.Calls = s.Calls[:min(1, len(s.Calls))]
		}
	}
	seen = Seen{p.Reports.Changes(), p.Reports.Lates()}
	returns := len(s.Back) > 0
	err = b.book(ctx, s, r)
	if returns {
		p.Reports.Changed()
	}
	if len(r.unseated) > 0 {
		var back []key.Booking
		for i, c := range r.unseated {
			back = append(back, key.Booking{Charge: &c, By: r.Force.Law, Cost: s.Calls[len(r.Charges)+i]})
		}
		b.giveBack(back...)
	}
	switch {
	case move == nil:
	case r.State.Speed == 0: // no reply: a call that has left by it can still cost more
		move.once(Done)
		p.slots.Free(move.slot.Drop())
	case len(r.Charges) > 0: // the new call has the slot of the call in flight
		move.once(Done | void)
		r.Seats = move.slot.Drop() > 0
	}
	if len(s.Told) > 0 {
		seen.Changes++ // the caller knows that they have arrived
	}
	return seen, err
}

// Lost notes that this process came to use so many reservations too late.
func (b *Core) Lost(calls int, late time.Duration) { b.slowPath().observers.AnnounceLate(calls, late) }

// Calls calls add with each call that a reply has booked. order is that of the first of them.
func (b *Core) Calls(costs []reports.Numbers, order uint64, r *Reply, add func(*Call)) {
	if len(r.Charges) == 0 {
		return
	}
	var calls []Call
	at := key.Now()
	if !r.Seats { // otherwise each would be collected by itself
		calls = make([]Call, len(r.Charges))
	}
	for i := range r.Charges {
		c := new(Call)
		if calls != nil {
			c = &calls[i]
		}
		c.core, c.cost[0], c.charge[0] = b, costs[i], r.Charges[i]
		c.admitted = at
		c.note(r)
		c.takeSlot(r)
		c.order, c.sure = order+uint64(i), clock.Sure(&r.State)
		add(c)
	}
}

// Compare orders calls as they were booked.
func (k *Call) Compare(l *Call) int {
	return cmp.Or(cmp.Compare(k.charge[0].Place, l.charge[0].Place), cmp.Compare(k.order, l.order))
}

// Order returns that of the booking.
func (k *Call) Order() uint64 { return k.order }

// Due returns when the call may leave, by a clock.
func (k *Call) Due(c *clock.Clock) time.Time { return c.Due(k.charge[0].Place) }

// Stale reports whether a clock will be too old when the call is due.
func (k *Call) Stale(c *clock.Clock) bool { return c.Stale(k.charge[0].Place) }

// Booked reports whether the call still has its reservation, by a clock.
func (k *Call) Booked(c *clock.Clock) bool { return c.Holds(&k.charge[0], k.sure) }

// Ready reports whether the call may leave now, by a clock, and how late it is. The call then knows
// of all holds that the clock includes.
func (k *Call) Ready(c *clock.Clock, now time.Time) (ready bool, late time.Duration) {
	k.charge[0].Epoch = max(k.charge[0].Epoch, c.State.Epoch)
	if c.Shared && k.slot != nil && !k.core.Slots().Holds() {
		return true, key.Forever // another process may have its slot
	}
	return c.Ready(k.charge[0].Place, now)
}

// Text returns the reservation as text.
func (k *Call) Text() string { return clock.Text(&k.charge[0]) }
