package fallback

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// again is how long the Store waits, at most, before it asks whether the store is back.
	again = 500 * time.Millisecond
	// rarely is the same if the store is back, and keys are left that it has not taken.
	rarely = time.Minute
)

// perUnit has an amount for each unit that limits can count.
type perUnit [store.MaxUnit + 1]float64

// add adds n, or with a sign of -1 subtracts it. If several limits count one unit, the largest
// number counts.
func (p *perUnit) add(limits []store.Limit, n *store.Units, sign float64) {
	var most perUnit
	for i := range limits {
		u := limits[i].Unit
		most[u] = max(most[u], n[i])
	}
	for u := range p {
		p[u] = max(0, p[u]+sign*most[u])
	}
}

// spend counts what an operation has spent here, less what it has returned.
func (k *away) spend(op *store.Op, r *store.Reply, t time.Duration) {
	was := k.spent
	for i := range r.Charges {
		k.spent.add(k.stored.Limits, &r.Charges[i].N, 1)
	}
	if op.Action == store.Meter {
		k.spent.add(k.stored.Limits, &op.Costs[0], 1)
	}
	mine := func(c *store.Charge) bool { return c.Born == k.stored.State.Born && !c.Settled }
	for i := range op.Reports {
		c := op.Reports[i].Charge
		if op.Reports[i].Kind != store.Settled || c.Settled {
			continue
		}
		var more, less store.Units
		for j := range k.stored.Limits {
			over := op.Reports[i].Used[j] - c.N[j]
			more[j], less[j] = max(0, over), max(0, -over)
		}
		if k.spent.add(k.stored.Limits, &more, 1); mine(c) {
			k.spent.add(k.stored.Limits, &less, -1)
		}
	}
	if r.Moved {
		k.spent.add(k.stored.Limits, &op.Move.N, -1)
	}
	for i := range op.Back {
		if mine(&op.Back[i]) {
			k.spent.add(k.stored.Limits, &op.Back[i].N, -1)
		}
	}
	if k.spent != was {
		k.spentAt = t
	}
}

// bill returns the operation that tells the store what it has to know of a key: what was spent, and a
// hold. If that is nothing, the operation is a look.
func (k *away) bill() *store.Op {
	op := &store.Op{Limits: k.limits, Number: k.number, Base: k.base, Age: k.age, Periods: k.periods}
	if k.stored.Limits == nil { // no call was served
		return op
	}
	t := now()
	look := store.Op{Limits: k.stored.Limits, Periods: k.periods}
	is := look.ApplyAt(&k.stored, t, unix())
	var n store.Units
	for i := range k.limits {
		l := &k.limits[i]
		if drained := l.Rate*(t-k.spentAt).Seconds() >= l.Capacity; drained && !l.Kind.Calendar() {
			continue
		}
		// The store's level has leaked meanwhile, so that what has leaked here is charged too. What
		// has come back to a window or a day has come back there as well.
		if n[i] = min(k.spent[l.Unit], l.Capacity); l.Kind != store.Leaky && k.open && !is.Untimely {
			n[i] = min(n[i], is.State.Level[i])
		}
	}
	if n != (store.Units{}) {
		op.Action, op.Costs = store.Meter, []store.Units{n}
	}
	if is.State.Rem > 0 {
		op.Reports = []store.Report{{Kind: store.Held, Wait: is.State.Rem, Reason: is.State.Why}}
	}
	return op
}

// later asks whether the store is back after d, less a random part of at most half.
func (s *Store) later(d time.Duration) { time.AfterFunc(d/2+rand.N(d/2), s.tick) }

// tick asks the store, by a look at one key after the other until it has an answer. Then it charges
// the store with all keys. It asks until again has passed: of the servers of a Cluster some may be
// back.
func (s *Store) tick() {
	s.mu.Lock()
	keys := make(map[string]*away, len(s.keys))
	for key, k := range s.keys {
		keys[key] = k
	}
	s.mu.Unlock()
	begin, back, next := now(), false, rarely
	for key, k := range keys {
		if !back {
			s.mu.Lock()
			look := store.Op{Limits: k.limits, Number: k.number, Base: k.base, Age: k.age, Periods: k.periods}
			s.mu.Unlock()
			_, err := s.Store.Update(context.Background(), key, &look)
			back = !s.gone(err)
		}
		if back {
			s.mu.Lock()
			charging := k.charging
			begun := charging == nil && s.keys[key] == k
			if begun {
				charging = k.begin()
			}
			s.mu.Unlock()
			if begun {
				back = s.charge(key, k, charging)
			}
		}
		if !back {
			if next = again; now()-begin > again {
				break
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 {
		s.later(next)
	}
}

// gone reports whether an error says that the store is unavailable.
func (s *Store) gone(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = err
	return true
}

// begin marks a charge that is under way.
func (k *away) begin() chan struct{} {
	k.charging = make(chan struct{})
	return k.charging
}

// charge charges the store with a key, which no call of the key does meanwhile. It reports whether
// the store was there. If the store has taken it, calls use the store again.
func (s *Store) charge(key string, k *away, charging chan struct{}) (back bool) {
	defer s.announce()
	back = true
	s.mu.Lock()
	defer s.mu.Unlock()
	for tries := range 4 { // others may set limits meanwhile
		op := k.bill()
		s.mu.Unlock()
		r, err := s.Store.Update(context.Background(), key, op)
		back = !s.gone(err)
		s.mu.Lock()
		if k.denied = err != nil && back; err != nil {
			break
		}
		if k.waits = r.Untimely || r.Stale && tries == 3; r.Stale && r.Limits != nil {
			k.limits, k.number, k.base, k.open, k.periods = r.Limits, r.Number, r.Base, false, nil
			continue
		}
		idle := k.waits && k.stored.Limits != nil && k.stored.State.Idle(k.stored.Limits)
		if !k.waits && !r.Stale || idle { // an idle key whose periods are over owes nothing
			s.comeBackLocked(key)
		}
		break
	}
	close(charging)
	k.charging = nil
	return back
}
