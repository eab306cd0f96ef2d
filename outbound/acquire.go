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
	asking := ctx // once an answer has come late, it ends after patience
	for late := 0; ; late++ {
		var r reply
		if err := b.book(asking, &s, &r); err != nil {
			if late > 0 { // what came too late went back with this trip
				b.slowPath().waiting.changed()
				if ctx.Err() == nil && err == asking.Err() {
					err = &StoreError{Op: "book", Key: b.key, Err: errLate}
				}
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
		if late == 0 {
			var end context.CancelFunc
			asking, end = context.WithDeadline(ctx, k.admitted.Add(patience))
			defer end()
		}
		k.admitted = time.Now()
		back := k.charge[0]
		s.back, s.freed = []*leak.Charge{&back}, k.slot.drop()
		if asking.Err() == nil {
			continue
		}
		if s.freed > 0 {
			b.slots().free(s.freed)
			b.slowPath().waiting.changed()
		}
		go b.giveBack(&back) // the caller does not wait for it
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, &StoreError{Op: "book", Key: b.key, Err: errLate}
	}
}

// giveBack gives a charge back that came too late.
func (b *core) giveBack(c *leak.Charge) {
	_ = b.do(context.Background(), "give back", &step{action: leak.Book, back: []*leak.Charge{c}}, new(reply))
	b.slowPath().waiting.changed()
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

// patience is how long after its beginning an Acquire asks again because an answer has come too late: so late
// answers do not add up to many times the store's timeout.
const patience = leak.Deaf

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
