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
	// Back are tickets that no call will use, in the order in which they were
	// booked. The latest bookings are undone; of others comes back what is safe.
	Back []Ticket
	// Move is a ticket to book again for its cost, Costs[0], because units came
	// back: it is undone if nothing was booked after it, and else nothing is
	// booked and it stays as it is. The zero Ticket: none.
	Move Ticket
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

	into    []Charge
	charges []*Charge
}

// Ticket is a place at which one call may go.
type Ticket struct{ call *call }

// Permit makes the ticket the permit of a call, when the call goes.
func (t Ticket) Permit() Permit { return Permit{call: t.call} }

// Cost returns what the ticket was booked for.
func (t Ticket) Cost() Cost { return t.call.cost[0] }

// Book carries the booking out. The first of Costs is refused with a
// [*ThrottledError] or a [*CostError], as Acquire refuses it; then, as with
// the error of a store, no ticket was granted. A place is used when
// [Clock.Ready] says so, or given back.
func (b *Bucket) Book(ctx context.Context, k *Booking) error {
	k.Tickets = k.Tickets[:0]
	if err := b.ready(ctx); err != nil {
		return err
	}
	if k.Wait < 0 || k.Horizon < 0 {
		return fmt.Errorf("%w: booking with a wait of %v and a horizon of %v", ErrInvalidDuration, k.Wait, k.Horizon)
	}
	op := Op{Action: Book, Costs: k.Costs, Wait: k.Wait, Horizon: k.Horizon, into: k.into[:0]}
	k.charges = k.charges[:0]
	for _, t := range k.Back {
		if t.call.once(flagDone | flagVoid) {
			k.charges = append(k.charges, &t.call.charge[0])
		}
	}
	op.Charges = k.charges
	if k.Move.call != nil {
		op.Move = &k.Move.call.charge[0]
	}
	r, err := b.book(ctx, &op)
	for _, t := range k.Back {
		t.call.slot.end()
	}
	if r.State.Speed > 0 {
		k.Clock = b.clock(&r)
	}
	if err != nil {
		return err
	}
	k.into = r.Charges
	if k.Move.call != nil && len(r.Charges) > 0 {
		// The slot goes with the place.
		k.Move.call.once(flagDone | flagVoid)
		k.Move.call.slot.end()
	}
	if len(r.Charges) == 0 {
		return nil
	}
	calls := make([]call, len(r.Charges))
	for i := range r.Charges {
		calls[i].bucket, calls[i].cost[0], calls[i].charge[0] = b, k.Costs[i], r.Charges[i]
		calls[i].hold(&r)
		k.Tickets = append(k.Tickets, Ticket{&calls[i]})
	}
	return nil
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

// Known reports whether there was a reply at all.
func (k *Clock) Known() bool { return k.bucket != nil }

// Holds reports whether the ticket still names a place. After a Resume it does
// not: it is to be given back and its call booked anew.
func (k *Clock) Holds(t Ticket) bool { return t.call.charge[0].Born == k.state.Born }

// Due returns the time at which the ticket's call may go, by this clock.
func (k *Clock) Due(t Ticket) time.Time {
	in, late := k.state.Due(t.call.charge[0].Place)
	if in == 0 {
		return k.received.Add(-late)
	}
	return k.received.Add(in)
}

// Ready reports whether the ticket's call may go at the time now, and how late
// it is, a lateness before a hold included. A call that is due is not ready
// while the clock was not heard lately enough: then book, or only listen.
func (k *Clock) Ready(t Ticket, now time.Time) (ready bool, late time.Duration) {
	in, late := k.state.Due(t.call.charge[0].Place)
	if !k.shared {
		// The bucket of this process has just been asked: what it did not
		// allow then, it may have forbidden since.
		return in == 0, late
	}
	age := now.Sub(k.received)
	return in <= age && age <= hearing, late + max(0, age-in)
}

// Stale reports whether the clock will be too old to let the ticket's call go
// when that is due, so that it must be heard again before. What must be asked at
// the time itself is never stale.
func (k *Clock) Stale(t Ticket) bool {
	return k.shared && k.Due(t).Sub(k.received) > hearing
}

// Same reports whether nothing has come between an older reply and this one
// that makes later what was planned with it: no hold, no Resume, no change of
// limits.
func (k *Clock) Same(older *Clock) bool {
	s, o := &k.state, &older.state
	return s.Born == o.Born && s.Epoch == o.Epoch && k.version == older.version &&
		(s.Rem <= 0 || s.At+s.Rem == o.At+o.Rem)
}

// Earliest returns a lower bound of the time at which a call of this cost can
// go, if calls of a total cost ahead go before it. It knows nothing of calls at
// once. A cost that can never go is a [*CostError].
func (k *Clock) Earliest(ahead, c *Cost) (time.Time, error) {
	if err := k.check(c); err != nil {
		return time.Time{}, err
	}
	return k.received.Add(k.wait(ahead, c)), nil
}

// check returns why a call of this cost can never go.
func (k *Clock) check(c *Cost) error {
	counted := false
	for i := range k.limits {
		n := c[k.limits[i].Unit]
		counted = counted || n > 0
		if n > k.limits[i].Capacity && c.valid() {
			return &CostError{Key: k.bucket.key, Limit: k.limits[i], Cost: *c, Err: ErrTooLarge}
		}
	}
	if !c.valid() || !counted && k.bucket.ledger().slots.Load() == 0 {
		return &CostError{Key: k.bucket.key, Cost: *c, Err: ErrInvalidCost}
	}
	return nil
}

// wait returns the real time from the reply on.
func (k *Clock) wait(ahead, c *Cost) time.Duration {
	w := max(0, k.state.Last)
	for i := range k.limits {
		l := &k.limits[i]
		if n := share(c, l); n > 0 {
			shape := leak.Limit{Capacity: l.Capacity, Rate: l.LeakRate}
			w = max(w, shape.Above(k.state.Level[i].Level+ahead[l.Unit]+n, l.Capacity))
		}
	}
	return k.state.Real(w)
}

// Tolerance returns how late a call may leave after its place unless somebody
// knows better: a tenth of the time in which a unit leaks out of the limit that
// drains soonest, at least 5 ms and at most 50 ms. With a limit made by [Per] or
// its kin it is 5 ms: what it leaves for arrivals that move closer together is
// 10 ms, and the network wants its share.
func (k *Clock) Tolerance() time.Duration {
	if len(k.limits) == 0 {
		return shortTolerance
	}
	for i := range k.limits {
		if k.limits[i].window != 0 {
			return shortTolerance
		}
	}
	var buf [maxLimits]leak.Limit
	i := leak.Shortest(shape(&buf, k.limits))
	unit := leak.Limit{Rate: k.limits[i].LeakRate}.Above(1, 0)
	return min(max(unit/10, shortTolerance), 10*shortTolerance)
}

const shortTolerance = jitter / 2
