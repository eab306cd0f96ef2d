package fallback

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// again is how long the Store waits, at most, before it asks whether the store is back.
	again = 500 * time.Millisecond
	// settling is for how long calls need both a share and the store once the store is back.
	// Meanwhile all processes charge it with what they have spent.
	settling = 3 * again
	// atOnce is how many keys are charged at the same time.
	atOnce = 128
)

// owe cuts what was spent to what the store has to be charged with, and ends the share. What it has
// spent of a window counts as if it had left now, so the next share begins full again.
func (k *away) owe() {
	if k.stored.Limits == nil {
		return
	}
	t, date := now(), unix()
	here := store.Op{Limits: k.stored.Limits, Periods: k.calendar.At(date)}
	is := here.ApplyAt(&k.stored, t, date).State
	for i := range k.look.Limits {
		k.spent[i] = k.look.Limits[i].Owes(k.spent[i], is.Level[i], t-k.spentAt)
	}
	k.stored.Limits = nil
}

// bill returns the operation that reports to the store what a key has spent, and its hold. If that
// is nothing, or it is unknown whether the store is back, the operation is a look.
func (k *away) bill() store.Op {
	op := k.look
	// Without a Number the reply brings the limits in force.
	if op.Number, op.Periods = 0, k.calendar.At(unix()); k.back.IsZero() {
		return op
	}
	if k.spent != (store.Units{}) {
		op.Action, op.Costs = store.Meter, []store.Units{k.spent}
	}
	if is := &k.stored.State; is.Rem-(now()-is.At) > 0 {
		op.Reports = []store.Report{{Kind: store.Held, Wait: is.Rem - (now() - is.At), Reason: is.Why}}
	}
	return op
}

// later has tick run, at a random time.
func (s *Store) later() { time.AfterFunc(again/2+rand.N(again/2), s.tick) }

// tick charges the store with all keys, several at the same time.
func (s *Store) tick() {
	s.mu.Lock()
	keys := maps.Clone(s.keys)
	s.mu.Unlock()
	var all sync.WaitGroup
	n := 0
	for _, k := range keys {
		all.Go(func() { s.charge(k) })
		if n++; n%atOnce == 0 {
			all.Wait()
		}
	}
	all.Wait()
	s.mu.Lock()
	if len(s.keys) > 0 {
		s.later()
	}
	s.mu.Unlock()
	s.announce()
}

// charge asks the store for a key that it has not answered for. From then on calls need both a new
// share and the store. Later charge charges the store, and after a while calls use only the store.
func (s *Store) charge(k *away) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := k.bill()
	s.mu.Unlock()
	r, err := s.Store.Update(context.Background(), k.key, &op)
	s.mu.Lock()
	if errors.Is(err, store.ErrUnavailable) {
		s.cause = err
		k.leave()
		return
	}
	if r.Limits != nil {
		k.adopt(&store.Op{Limits: r.Limits, Number: r.Number, Base: r.Base})
	}
	switch {
	case k.back.IsZero() && !s.fails():
		k.back = time.Now() // also after another error: calls get it, too
		k.owe()
	case err != nil || r.Stale || r.Untimely:
	case k.spent == (store.Units{}) && time.Since(k.back) >= settling:
		s.comeBackLocked(k)
	default:
		k.spent = store.Units{}
	}
}
