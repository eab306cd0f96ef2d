package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

const (
	// mostStale is how often the store may answer that other limits are in force before
	// charge gives up.
	mostStale = 8
	// chargeAgain is how long the Store waits before it tries again to charge keys that the
	// store has not taken, if no call of theirs comes.
	chargeAgain = time.Minute
)

var errStale = errors.New("the limits change faster than they can be heard of")

// charging is a try to charge the store with the debts of a key.
type charging struct {
	done chan struct{}
	// After done:
	err error // why the store refused this key
	// untimely are the debts by whose periods the store's time is in none, with its replies.
	// They wait for a call that counts by their limits, and tells other periods.
	untimely map[*debt]leak.Reply
}

// awaitCharge waits for the try that charges the store with the debts of a key, or until ctx
// ends, and then returns nil. The first caller begins the try. If the store refuses this key,
// or its time is in none of the periods of a debt, the key's next call tries again. Otherwise the
// key is no longer degraded, or the store is away again, or a debt waits for a call that counts by
// a bucket's own limits.
func (s *Store) awaitCharge(ctx context.Context, key string, k *degradedKey) *charging {
	s.mu.Lock()
	if s.keys[key] != k || s.breaker.in(away) {
		s.mu.Unlock()
		return nil
	}
	c := k.charging
	if c == nil {
		c = &charging{done: make(chan struct{}), untimely: make(map[*debt]leak.Reply)}
		k.charging = c
		go s.charge(key, k) // not with the first caller's ctx: others wait for it too
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c
	case <-ctx.Done():
		return nil
	}
}

func (s *Store) charge(key string, k *degradedKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.chargeLocked(key, k, k.charging.untimely); !errors.Is(err, leak.ErrAway) {
		k.charging.err = err
	}
	close(k.charging.done)
	k.charging = nil
	s.settleLocked()
}

// chargeLocked charges the store with the debts of a key, one trip each. If the store goes
// away and comes back during a trip, calls may have spent more, and chargeLocked makes another
// trip. Where limits that were set are set no longer, the debt waits for a call that counts by a
// bucket's own.
func (s *Store) chargeLocked(key string, k *degradedKey, untimely map[*debt]leak.Reply) error {
	stale, told := 0, false
	for !s.breaker.in(away) && s.keys[key] == k {
		k.used = false
		d, op, waits := k.next(now(), untimely, told)
		if op == nil {
			if !waits {
				delete(s.keys, key)
			}
			return nil
		}
		spent, refused := d.spent, k.refused
		r, err := s.tellLocked(key, op)
		switch {
		case err != nil:
			return err
		case r.Untimely:
			untimely[d] = r
		case r.Stale:
			if stale++; stale > mostStale {
				return errStale
			}
			d.stamp, d.periods, d.share, d.unset = r.Stamp, nil, nil, r.Limits == nil
			if !d.unset {
				d.limits = r.Limits
			}
		default:
			d.spent.subtract(&spent)
			k.reported, told = refused, !k.used
		}
	}
	return nil
}

// next returns the next debt to tell the store of, and the operation that does. If there is none,
// waits reports whether others wait for a call.
func (k *degradedKey) next(t time.Duration, untimely map[*debt]leak.Reply, told bool) (_ *debt, _ *leak.Op, waits bool) {
	for _, d := range k.debts {
		op := k.debtOp(d, t, told)
		if op == nil {
			continue
		}
		if _, ok := untimely[d]; !ok && !d.unset {
			return d, op, false
		}
		waits = true
	}
	return nil, nil, waits
}

// tellLocked makes a trip to the store, without the lock.
func (s *Store) tellLocked(key string, op *leak.Op) (leak.Reply, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	r, err := s.Store.Update(context.Background(), key, op)
	switch {
	case err == nil:
		s.remember(key, op, &r)
	case errors.Is(err, leak.ErrAway):
		s.leave(err)
	}
	return r, err
}

// chargeKeys charges the store with what every key has spent since the return at back. While
// some keys are left it comes again: calls of theirs may never come.
func (s *Store) chargeKeys(back time.Duration) {
	s.mu.Lock()
	keys := make([]string, 0, len(s.keys))
	for key := range s.keys {
		keys = append(keys, key)
	}
	s.mu.Unlock()
	for _, key := range keys {
		s.mu.Lock()
		k, over := s.keys[key], !s.breaker.in(returning) || s.breaker.back != back
		s.mu.Unlock()
		if over {
			return
		}
		if k != nil {
			s.awaitCharge(context.Background(), key, k) // the key's next call gets the error
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 && s.breaker.in(returning) && s.breaker.back == back {
		time.AfterFunc(chargeAgain, func() { s.chargeKeys(back) })
	}
}
