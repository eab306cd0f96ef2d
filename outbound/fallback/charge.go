package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// mostStale is how often the store may answer that other limits are in force before charge
// gives up.
const mostStale = 8

var errStale = errors.New("the limits change faster than they can be heard of")

// perUnit has an amount for each unit that limits can count.
type perUnit [leak.MaxUnit + 1]float64

// add adds n, or with a sign of -1 subtracts it. Where several limits count one unit, the
// largest number counts.
func (p *perUnit) add(limits []leak.Limit, n *leak.Units, sign float64) {
	var most perUnit
	for i := range limits {
		u := limits[i].Unit
		most[u] = max(most[u], n[i])
	}
	for u := range p {
		p[u] += sign * most[u]
	}
}

// subtract subtracts q, and leaves at least 0.
func (p *perUnit) subtract(q *perUnit) {
	for u := range p {
		p[u] = max(0, p[u]-q[u])
	}
}

// spend counts what the operation has spent here, less what it has given back.
func (k *degradedKey) spend(op *leak.Op, r *leak.Reply, t time.Duration) {
	was := k.spent
	for i := range r.Charges {
		k.spent.add(k.share, &r.Charges[i].N, 1)
	}
	if op.Action == leak.Meter {
		k.spent.add(k.share, &op.Costs[0], 1)
	}
	for i := range op.Reports {
		if s := &op.Reports[i]; s.Kind == leak.Settled && !s.Charge.Settled {
			k.settle(s)
		}
	}
	if op.Move != nil && len(r.Charges) > 0 { // the charge that was moved counts once
		k.spent.add(k.share, &r.Charges[0].N, -1)
	}
	var back perUnit
	for i := range op.Back {
		if c := &op.Back[i]; c.Born == k.stored.State.Born && !c.Settled {
			back.add(k.share, &c.N, 1)
		}
	}
	k.spent.subtract(&back)
	if k.spent != was {
		k.spentAt = t
	}
}

// settle counts what a call has cost beyond its charge. What it has cost less comes back
// only if the call was admitted here.
func (k *degradedKey) settle(s *leak.Report) {
	var more, less leak.Units
	for i := range k.share {
		over := s.Used[i] - s.Charge.N[i]
		more[i], less[i] = max(0, over), max(0, -over)
	}
	k.spent.add(k.share, &more, 1)
	if s.Charge.Born == k.stored.State.Born {
		k.spent.add(k.share, &less, -1)
	}
}

// debt returns what the store is to be charged with at time t: of each limit at most its
// capacity, and nothing if the limit has had the time to drain since the last units were
// spent. Otherwise debt subtracts nothing that has leaked: the store's level has leaked in
// the same time, which must not count twice. Of a window or a calendar it is at most what is
// still in the share, as a look at it tells: the rest has come back to the store as well.
func (k *degradedKey) debt(t time.Duration, is *leak.Reply) (n leak.Units) {
	for i := range k.limits {
		l := &k.limits[i]
		if drained := l.Rate*(t-k.spentAt).Seconds() >= l.Capacity; drained {
			continue
		}
		n[i] = min(k.spent[l.Unit], l.Capacity)
		if l.Kind != leak.Leaky && i < len(k.share) {
			n[i] = min(n[i], is.State.Level[i].Level)
		}
	}
	return n
}

// debtOp returns the operation that tells the store of the outage: its debt, and a hold
// that is in force. It reports false if there is nothing to tell.
func (k *degradedKey) debtOp(t time.Duration) (op *leak.Op, ok bool) {
	op = &leak.Op{Limits: k.limits, Periods: k.periods, Stamp: k.stamp}
	is := k.peek()
	held := max(0, is.State.Rem)
	if r := k.refused; r != nil && r != k.reported {
		refused := *r
		refused.Wait = max(1, held) // what is left of the hold; 0 would say that the API named no time
		op.Reports = append(op.Reports, refused)
	} else if held > 0 {
		op.Reports = append(op.Reports, leak.Report{Kind: leak.Held, Wait: held})
	}
	if n := k.debt(t, &is); n != (leak.Units{}) {
		op.Action, op.Costs = leak.Meter, []leak.Units{n}
	}
	return op, op.Action == leak.Meter || len(op.Reports) > 0
}

// charging is a try to charge the store with the debt of a key.
type charging struct {
	done chan struct{}
	// After done:
	err      error       // why the store refused this key
	untimely *leak.Reply // the store's time is not in the periods that the latest call has told; nil: it is
}

// awaitCharge waits for the try that charges the store with the debt of a key, or until ctx
// ends. The first caller begins the try. If the store refuses this key, awaitCharge
// returns its error, or its reply to periods that are not those of its time, and the key's
// next call tries again. Otherwise the key is no longer degraded, or the store is away again.
func (s *Store) awaitCharge(ctx context.Context, key string, k *degradedKey) (untimely *leak.Reply, err error) {
	s.mu.Lock()
	if s.keys[key] != k || s.breaker.in(away) {
		s.mu.Unlock()
		return nil, nil
	}
	c := k.charging
	if c == nil {
		c = &charging{done: make(chan struct{})}
		k.charging = c
		go s.charge(key, k) // not with the first caller's ctx: others wait for it too
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c.untimely, c.err
	case <-ctx.Done():
		return nil, nil
	}
}

// charge charges the store with the debt of a key. If the store goes away and comes back
// during a trip, calls may have spent more, and charge makes another trip. If limits that
// were set are set no longer, the key waits for a call that counts by a bucket's own.
func (s *Store) charge(key string, k *degradedKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for stale := 0; err == nil && !s.breaker.in(away) && s.keys[key] == k && k.limits != nil; {
		k.used = false
		spent, refused := k.spent, k.refused
		if op, ok := k.debtOp(now()); ok {
			var r leak.Reply
			if r, err = s.tellLocked(key, op); err != nil {
				break
			}
			if r.Untimely {
				k.charging.untimely = &r
				break
			}
			if r.Stale {
				// None: each bucket's own count, and those its next call tells.
				k.stamp, k.limits, k.share, k.periods = r.Stamp, r.Limits, nil, nil
				if stale++; stale > mostStale {
					err = errStale
				}
				continue
			}
		}
		k.spent.subtract(&spent)
		k.reported = refused
		if !s.breaker.in(away) && !k.used {
			delete(s.keys, key)
		}
	}
	if !errors.Is(err, leak.ErrAway) {
		k.charging.err = err
	}
	close(k.charging.done)
	k.charging = nil
	s.settleLocked()
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
