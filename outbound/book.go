package outbound

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Booking is a step for packages that wait for their callers, such as a queue
// or a scheduler: it gives tickets back, books places ahead, and hears the
// bucket's clock, in one trip to wherever the bucket lives. A Booking can be
// used again, which saves allocations.
type Booking struct {
	// Costs are the calls to book places for, in this order. None: only listen.
	Costs []Cost
	// Wait is the longest that the first of them can wait.
	Wait time.Duration
	// Horizon is the longest that the others can wait. Bookings stop at the
	// first that is refused.
	Horizon time.Duration

	// Tickets are the places booked, in order: at most one for each of Costs.
	Tickets []Ticket
	// Clock is the bucket's, as of the reply.
	Clock Clock

	into []Charge
}

// Ticket is a place at which one call may go.
type Ticket struct{ call *call }

// Permit makes the ticket the permit of a call, when the call goes.
func (t Ticket) Permit() Permit { return Permit{call: t.call} }

// Cost returns what the ticket was booked for.
func (t Ticket) Cost() Cost { return t.call.charge.Cost }

// Covers reports whether a call of this cost can go with the ticket. If it
// costs less, settle the permit to that.
func (t Ticket) Covers(c Cost) bool { return t.call.charge.Cost.covers(&c) }

// Book books. The first of Costs is refused with a [*ThrottledError] or a
// [*CostError] as Acquire refuses it; then, as with an error of the store, no
// ticket was granted. A place is used at the time that [Clock.Due] tells, or
// given back.
func (b *Bucket) Book(ctx context.Context, k *Booking) error {
	k.Tickets = k.Tickets[:0]
	if err := b.ready(ctx); err != nil {
		return err
	}
	if k.Wait < 0 || k.Horizon < 0 {
		return fmt.Errorf("%w: booking with a wait of %v and a horizon of %v", ErrInvalidDuration, k.Wait, k.Horizon)
	}
	op := Op{Costs: k.Costs, Wait: k.Wait, Horizon: k.Horizon, into: k.into[:0]}
	if len(k.Costs) > 0 {
		op.Action = Book
	}
	r, err := b.book(ctx, &op)
	if r.State.Speed > 0 {
		k.Clock = b.clock(&r)
	}
	if err != nil {
		return err
	}
	k.into = r.Charges
	calls := make([]call, len(r.Charges))
	for i := range r.Charges {
		calls[i].bucket, calls[i].charge = b, r.Charges[i]
		calls[i].hold()
		k.Tickets = append(k.Tickets, Ticket{&calls[i]})
	}
	return nil
}

// GiveBack gives tickets back that no call will use, in the order in which
// they were booked. The latest bookings are undone; of others comes back what
// is safe. It fails only with a store, and then room is lost.
func (b *Bucket) GiveBack(ctx context.Context, tickets ...Ticket) error {
	if err := b.ready(ctx); err != nil {
		return err
	}
	charges := make([]*Charge, 0, len(tickets))
	for _, t := range tickets {
		if t.call.once(flagDone | flagVoid) {
			charges = append(charges, &t.call.charge)
		}
	}
	_, err := b.do(ctx, "give back", &Op{Action: Unbook, Charges: charges})
	for _, t := range tickets {
		t.call.slot.end()
	}
	return err
}

// book carries an operation out and says why the first of its costs was refused.
func (b *Bucket) book(ctx context.Context, op *Op) (Result, error) {
	for i := range op.Costs {
		if !op.Costs[i].valid() {
			if i > 0 { // those before it can go
				op.Costs = op.Costs[:i]
				break
			}
			return Result{}, &CostError{Key: b.key, Cost: op.Costs[0], Err: ErrInvalidCost}
		}
	}
	r, err := b.do(ctx, op.Action.String(), op)
	if err != nil || !r.Refused || len(r.Charges) > 0 {
		return r, err
	}
	switch {
	case r.Invalid:
		err = &CostError{Key: b.key, Cost: op.Costs[0], Err: ErrInvalidCost}
	case r.TooLarge:
		err = &CostError{Key: b.key, Limit: r.Limits[r.Limit], Cost: op.Costs[0], Err: ErrTooLarge}
	default:
		refused := &ThrottledError{Key: b.key, RetryAfter: r.Wait, Held: r.State.Rem > 0}
		if r.noSlot {
			refused.Limit = b.slotName()
		} else if r.Limit >= 0 {
			refused.Limit = r.Limits[r.Limit].Name
		}
		err = refused
	}
	return r, err
}

// slotName is the name of the limit on calls at once.
func (b *Bucket) slotName() string {
	l := b.ledger()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.limits {
		if l.limits[i].atOnce {
			return l.limits[i].Name
		}
	}
	return ""
}

// forecast returns the real time until a call of this cost could go, by a reply.
func (b *Bucket) forecast(r *Result, c Cost) (time.Duration, error) {
	k := b.clock(r)
	return k.Wait(Cost{}, c)
}

// Clock is what a reply told about a bucket: its clock, its levels and its
// limits. A [Booking] carries it.
type Clock struct {
	bucket   *Bucket
	state    leak.State
	limits   []Limit
	version  int64
	received time.Time
	shared   bool
}

func (b *Bucket) clock(r *Result) Clock {
	return Clock{bucket: b, state: r.State, limits: r.Limits, version: r.Version, received: time.Now(), shared: b.ledger().store != nil}
}

// hearing is how long a reply from a shared store may be relied upon: a worker
// that is deaf to a hold for longer breaks the invariant.
const hearing = 25 * time.Millisecond

// Fresh reports whether the clock may still be relied upon to let a call go.
// That of a bucket in this process costs next to nothing to ask and never may.
func (k *Clock) Fresh(at time.Time) bool {
	return k.shared && at.Sub(k.received) <= hearing
}

// Holds reports whether the ticket still names a place. After a Resume it does
// not: it is to be given back and its call booked anew.
func (k *Clock) Holds(t Ticket) bool { return t.call.charge.Born == k.state.Born }

// Due returns the time at which the ticket's call may go, and how late it
// already was when the clock was last heard: lateness before a hold counts.
func (k *Clock) Due(t Ticket) (at time.Time, late time.Duration) {
	in, late := k.state.Due(t.call.charge.Place)
	return k.received.Add(in), late
}

// Same reports whether nothing but time and bookings has come between two
// replies, so that what was planned with the one stands with the other.
func (k *Clock) Same(other *Clock) bool {
	return k.state.Born == other.state.Born && k.state.Epoch == other.state.Epoch && k.version == other.version &&
		k.state.Rem <= 0 && other.state.Rem <= 0
}

// Wait returns a lower bound of the time until a call of this cost could go,
// if calls of a total cost ahead go before it, counted from the reply. It
// knows nothing of calls at once. A cost that can never go is a [*CostError].
func (k *Clock) Wait(ahead, c Cost) (time.Duration, error) {
	invalid := &CostError{Key: k.bucket.key, Cost: c, Err: ErrInvalidCost}
	if !c.valid() {
		return 0, invalid
	}
	var buf [maxLimits]leak.Limit
	var n leak.Units
	counted := false
	for i := range k.limits {
		l := &k.limits[i]
		own := share(&c, l)
		if own > l.Capacity {
			return 0, &CostError{Key: k.bucket.key, Limit: *l, Cost: c, Err: ErrTooLarge}
		}
		counted = counted || own > 0
		if own > 0 {
			n[i] = own + ahead[l.Unit]
		}
	}
	if l := k.bucket.ledger(); !counted && l.slots == 0 {
		return 0, invalid
	}
	w, _ := k.state.Wait(shape(&buf, k.limits), &n)
	return k.state.Real(w), nil
}

// Interval returns the emission interval: the time in which a unit leaks out
// of the limit that drains soonest.
func (k *Clock) Interval() time.Duration {
	if len(k.limits) == 0 {
		return 0
	}
	var buf [maxLimits]leak.Limit
	i := leak.Shortest(shape(&buf, k.limits))
	return leak.Limit{Rate: k.limits[i].LeakRate}.Above(1, 0)
}
