package key

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Recall is a [store.Store] in front of another one, for a key whose limits count nothing. The
// calls of such a key only have to learn of holds, and Recall answers what it can by the last
// reply.
type Recall struct {
	store   store.Store
	refresh func()

	mu       sync.Mutex    // protects what follows
	clear    store.Reply   // the last reply without a hold
	received time.Duration // when it came
	fresh    time.Duration // for how long calls leave by it
	looking  bool          // a request for the next one is under way
	held     time.Duration // when the last reply with a hold came
	asked    time.Duration // when the request for clear was sent
}

// NewRecall returns a Recall in front of a store. refresh makes a request for the key.
func NewRecall(in store.Store, refresh func()) *Recall {
	return &Recall{store: in, refresh: refresh, received: Never, held: Never, asked: Never}
}

// Knows reports whether a booking needs no request now.
func (k *Recall) Knows() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Now()-k.received <= k.fresh
}

// Update is that of the store, unless the key has limits that count, or Recall knows the answer.
func (k *Recall) Update(ctx context.Context, name string, op *store.Op) (r store.Reply, err error) {
	open := Open(op.Limits)
	if open && k.answer(op, &r) {
		return r, nil
	}
	sent := Now()
	r, err = k.store.Update(ctx, name, op)
	if err == nil && open {
		k.note(sent, &r)
	}
	return r, err
}

// answer answers a booking, and reports whether it has. A booking with slots relies on a reply as a
// queue does, and fetches the next in the second half of that time. Another booking relies on it
// for a second.
func (k *Recall) answer(op *store.Op, r *store.Reply) bool {
	if op.Action != store.Book || op.Move != nil || len(op.Reports) > 0 {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	age := Now() - k.received
	if age > store.MaxReplyAge || len(op.Costs) > 0 && age > k.fresh || op.Number != k.clear.Number {
		return false
	}
	if len(op.Costs) > 0 && age > k.fresh/2 && !k.looking {
		k.looking = true
		go k.refresh()
	}
	*r = k.clear
	r.Charges = op.Into
	for range op.Costs {
		r.Charges = append(r.Charges, store.Charge{Born: r.State.Born, Epoch: r.State.Epoch, Number: r.Number, Place: r.State.Dial()})
	}
	return true
}

// note keeps a reply without a hold, to a request that was sent at that time. If a hold was
// reported meanwhile, it may have begun after the reply.
func (k *Recall) note(sent time.Duration, r *store.Reply) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looking = false
	switch t := Now(); {
	case r.State.Rem > 0:
		k.held, k.received = t, Never
	case r.Limits != nil, r.Refused: // by other limits, or behind what was reserved before a Resume
		k.received = Never
	case !r.Stale && sent > k.held && sent >= k.asked: // replies may cross
		k.asked, k.clear, k.received, k.fresh = sent, *r, t, min(max(MinReplyAge, t-sent), store.MaxReplyAge)
		k.clear.Charges = nil
	}
}
