package fallback

import (
	"context"
	"errors"
	"maps"
	"math"
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

// add adds n, which may be negative. If several limits count one unit, the largest number counts.
func (p *perUnit) add(limits []store.Limit, n *store.Units, sign float64) {
	for u := range p {
		most := math.Inf(-1)
		for i := range limits {
			if int(limits[i].Unit) == u {
				most = max(most, sign*n[i])
			}
		}
		p[u] = max(0, p[u]+most)
	}
}

// spend counts what an operation has spent here, less what it has returned.
func (k *away) spend(op *store.Op, r *store.Reply, t time.Duration) {
	was, share := k.spent, k.stored.Limits
	mine := func(c *store.Charge) bool { return c.Born == k.stored.State.Born && !c.Settled }
	for i := range r.Charges {
		k.spent.add(share, &r.Charges[i].N, 1)
	}
	if op.Action == store.Meter {
		k.spent.add(share, &op.Costs[0], 1)
	}
	for i := range op.Reports {
		c, used := op.Reports[i].Charge, op.Reports[i].Used
		if op.Reports[i].Kind != store.Settled || c.Settled {
			continue
		}
		for j := range share {
			if used[j] -= c.N[j]; !mine(c) {
				used[j] = max(0, used[j])
			}
		}
		k.spent.add(share, &used, 1)
	}
	if r.Moved {
		k.spent.add(share, &op.Move.N, -1)
	}
	for i := range op.Back {
		if mine(&op.Back[i]) {
			k.spent.add(share, &op.Back[i].N, -1)
		}
	}
	if k.spent != was {
		k.spentAt = t
	}
}

// bill returns the operation that tells the store what it has to know of a key: what was spent, and a
// hold. If that is nothing, the operation is a look.
func (k *away) bill() store.Op {
	op := k.look
	if k.stored.Limits == nil { // no call was served
		return op
	}
	t := now()
	here := store.Op{Limits: k.stored.Limits, Periods: k.look.Periods}
	is := here.ApplyAt(&k.stored, t, unix())
	var n store.Units
	for i := range k.look.Limits {
		l := &k.look.Limits[i]
		if drained := l.Rate*(t-k.spentAt).Seconds() >= l.Capacity; drained && !l.Kind.Calendar() {
			continue
		}
		// The store's level has leaked meanwhile, so that what has leaked here is charged too. What
		// has come back to a window or a day has come back there as well.
		if n[i] = k.spent[l.Unit]; l.Kind != store.Leaky && k.open && !is.Untimely {
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

// tick looks at one key after the other, and charges the store with those that it answers for. It
// goes on for half a second if it does not answer, because some servers of a Cluster may be back.
func (s *Store) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	begin, next := now(), rarely
	for key, k := range maps.Clone(s.keys) {
		if s.keys[key] != k {
			continue
		}
		if !s.back {
			_, err := s.askLocked(key, k.look)
			s.back = !s.goneLocked(err)
		}
		if s.back && s.keys[key] == k {
			charging := s.chargeLocked(key, k)
			s.mu.Unlock()
			<-charging
			s.mu.Lock()
		}
		if !s.back {
			if next = again; now()-begin > again {
				break
			}
		}
	}
	if len(s.keys) > 0 {
		s.later(next)
	}
}

// askLocked asks the store without the lock.
func (s *Store) askLocked(key string, op store.Op) (store.Reply, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.Store.Update(context.Background(), key, &op)
}

// goneLocked reports whether an error says that the store is unavailable.
func (s *Store) goneLocked(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) {
		return false
	}
	s.cause, s.back = err, false
	return true
}

// chargeLocked charges the store with a key, which no call of the key does meanwhile, and returns a
// channel that is closed when that has ended. If the store has taken it, calls use the store again.
func (s *Store) chargeLocked(key string, k *away) <-chan struct{} {
	if k.charging == nil {
		k.charging = make(chan struct{})
		go s.charge(key, k)
	}
	return k.charging
}

func (s *Store) charge(key string, k *away) {
	defer s.announce()
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 4 { // others may set limits meanwhile
		r, err := s.askLocked(key, k.bill())
		if k.stuck = !s.goneLocked(err); err != nil {
			break
		}
		if r.Stale && r.Limits != nil {
			k.look.Limits, k.look.Number, k.look.Base, k.look.Periods, k.open = r.Limits, r.Number, r.Base, nil, false
			continue
		}
		idle := k.stored.Limits != nil && k.stored.State.Idle(k.stored.Limits)
		if !r.Untimely && !r.Stale || idle { // an idle key whose periods are over owes nothing
			s.comeBackLocked(key)
		}
		break
	}
	close(k.charging)
	k.charging = nil
}
