package outbound

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// acquire is Acquire for a call that the cell cannot decide.
func (b *core) acquire(ctx context.Context, c Cost) (Call, error) {
	if c == (Cost{}) && b.slots().most() == 0 {
		return b.acquireNothing(ctx)
	}
	k := &call{core: b, cost: [1]Cost{c}, admitted: time.Now()}
	s := step{action: leak.Book, costs: k.cost[:], into: k.charge[:0]}
	for late := 0; ; late++ {
		var r reply
		if err := b.book(ctx, &s, &r); err != nil {
			if late > 0 { // what came too late went back with this trip
				b.slowPath().waiting.changed()
			}
			return nil, err
		}
		if len(r.Charges) == 0 {
			return nil, &StoreError{Op: "book", Key: b.key, Err: errSilent}
		}
		k.charge[0] = r.Charges[0]
		k.takeSlot(&r)
		if k.inTime(&r) {
			return k, nil
		}
		k.admitted = time.Now()
		back := k.charge[0]
		s.back, s.freed = []*leak.Charge{&back}, k.slot.drop()
		if late == mostLate {
			s.costs = nil
			_ = b.do(context.WithoutCancel(ctx), "give back", &s, &r)
			b.slowPath().waiting.changed()
			return nil, &StoreError{Op: "book", Key: b.key, Err: errLate}
		}
	}
}

// acquireNothing is acquire for a call that costs nothing. It goes unless a hold lasts, also
// before calls that are booked.
func (b *core) acquireNothing(ctx context.Context) (Call, error) {
	k := &call{core: b, admitted: time.Now()}
	var r reply
	if err := b.peek(ctx, "peek", &step{}, &r); err != nil {
		return nil, err
	}
	if r.State.Rem > 0 {
		return nil, &ThrottledError{Key: b.key, RetryAfter: r.State.Rem, Held: true, Reason: Reason(r.State.Why)}
	}
	// No life knows of this charge: nothing of it comes back.
	k.charge[0] = leak.Charge{Born: never, Epoch: r.State.Epoch, Version: r.Version}
	return k, nil
}

// mostLate is how many late replies a call gives back before it gives up.
const mostLate = 3

var (
	errLate   = errors.New("answers come too late to be used")
	errSilent = errors.New("it has neither booked nor refused")
)

// inTime reports whether the reply that admits the call comes in time. A shared store may
// have repeated the reply, or the network held it up. By then other calls may have followed
// the call's place, and together with them it would be one too many.
func (k *call) inTime(r *reply) bool {
	if r.When.IsZero() {
		return true
	}
	now := time.Now()
	if now.Sub(k.admitted) <= leak.BookingGrace {
		return true
	}
	_, late := r.State.Due(k.charge[0].Place)
	return late+now.Sub(clamp(r.Heard, k.admitted, now)) <= leak.BookingGrace
}
