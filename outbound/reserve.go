package outbound

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Reservation is a reserved time for one call: see [Bucket.Reserve]. It is safe for concurrent use.
type Reservation struct {
	bucket  *Bucket
	cost    Cost
	maxWait time.Duration

	mu      sync.Mutex // protects what follows
	booking BookRequest
	ticket  Ticket // zero if used, cancelled or lost
}

// Reserve reserves a time for a call of this cost, at most maxWait away, and charges it. A call
// that would have to wait longer is refused with a [*ThrottledError], and nothing is charged. The
// caller waits until [Reservation.At], asks for the [Reservation.Permit] and calls the API, or
// cancels the reservation. One that is dropped stays charged. Reserve and Permit take one operation
// each, which is one request if the bucket is shared.
//
//	r, err := bucket.Reserve(ctx, outbound.Cost{1}, time.Minute)
//	if err != nil {
//		return err
//	}
//	time.Sleep(time.Until(r.At()))
//	permit, err := r.Permit(ctx)
//
// A queue does all of this, and lets calls leave in their order of arrival: see package queue.
func (b *Bucket) Reserve(ctx context.Context, c Cost, maxWait time.Duration) (*Reservation, error) {
	r := &Reservation{bucket: b, cost: c, maxWait: maxWait}
	return r, r.book(ctx)
}

// book returns what the booking returns, and reserves a time.
func (r *Reservation) book(ctx context.Context) error {
	k := &r.booking
	r.ticket, k.Costs, k.Wait = Ticket{}, []Cost{r.cost}, r.maxWait
	err := r.bucket.Book(ctx, k)
	k.Unused, k.Costs = nil, nil
	if err == nil {
		r.ticket = k.Tickets[0]
	}
	return err
}

// At returns when the call may leave, by the last reply of the bucket. It is zero if the
// reservation was used, cancelled or lost.
func (r *Reservation) At() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ticket.call == nil {
		return time.Time{}
	}
	return r.booking.Clock.Due(r.ticket)
}

// Permit returns the permit of the call if the reservation is due. If it is not, as after a hold
// has moved it, the error is a [*ThrottledError] with the time until it is. A reservation that the
// caller uses late, by more than [Clock.Tolerance] allows, or that a Resume or other limits have
// made void, is replaced by a new one within maxWait. Without such time the reservation is lost,
// and the error is a refusal. After an error of the store the caller may ask again. A reservation
// that was used or cancelled is [ErrInvalid].
func (r *Reservation) Permit(ctx context.Context) (Permit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &r.booking
	if r.ticket.call == nil {
		return Permit{}, fmt.Errorf("%w: reservation that was used or cancelled", ErrInvalid)
	}
	err := r.bucket.Book(ctx, k) // reads the clock
	if err != nil {
		return Permit{}, err
	}
	ready, late := k.Clock.Ready(r.ticket, time.Now())
	if !k.Clock.Holds(r.ticket) || ready && late > k.Clock.Tolerance(0) {
		k.Unused = []Ticket{r.ticket}
		if err := r.book(ctx); err != nil {
			return Permit{}, err
		}
		ready, _ = k.Clock.Ready(r.ticket, time.Now())
	}
	if !ready {
		held, reason := k.Clock.Held(time.Now())
		return Permit{}, &ThrottledError{Key: r.bucket.core.Name, RetryAfter: max(1, time.Until(k.Clock.Due(r.ticket))), Held: held, Reason: reason}
	}
	p := r.ticket.Permit()
	r.ticket = Ticket{}
	return p, nil
}

// Cancel ends the reservation. The bucket returns its units if no later reservation exists, and
// otherwise what is safe. Cancel has no effect after Permit has returned a permit.
func (r *Reservation) Cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ticket.call == nil {
		return
	}
	r.booking.Unused, r.ticket = []Ticket{r.ticket}, Ticket{}
	_ = r.bucket.Book(context.Background(), &r.booking) // what fails stays charged
}
