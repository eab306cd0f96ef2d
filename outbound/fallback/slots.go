package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// slots is a key of calls in flight.
type slots struct {
	answered time.Duration // when the store last answered; before that: when it was first asked
	own      store.Stored  // the share, while the store is unavailable
}

// allot is Update for an ask for slots. A lease after the store's last answer the slots of all
// processes that do without it are free, and each has its share.
func (s *Store) allot(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.slots[key]
	if k == nil && len(s.slots) < maxKeys {
		k = &slots{answered: now()}
		s.slots[key] = k
	}
	switch {
	case k == nil:
		return r, err
	case err == nil:
		*k = slots{answered: now()}
		return r, nil
	case s.fails(), !errors.Is(err, store.ErrUnavailable), ctx.Err() != nil, !s.Unlimited && now()-k.answered < op.Ask.Lease:
		return r, err
	}
	l, here := op.Limits[0], *op
	if l.Capacity = float64(int(l.Capacity*s.Share + 1e-9)); s.Unlimited {
		l.Capacity = 1e9
	} else if l.Capacity < 1 {
		return r, err
	}
	l.Rate *= l.Capacity / op.Limits[0].Capacity
	if here.Limits = []store.Limit{l}; !store.Equal(here.Limits, k.own.Limits) {
		k.own = store.Stored{}
	}
	here.Number = k.own.Number
	r = here.Apply(&k.own, now())
	r.Number, r.Limits = 0, nil // it has no information on the limits in force in the store
	return r, nil
}
