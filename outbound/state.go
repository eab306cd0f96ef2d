package outbound

import (
	"context"
	"math"
	"time"
)

// State is what a limit looks like at one moment.
type State struct {
	// Limit is which limit this is.
	Limit Limit
	// Level is the number of units in it, those included that are booked for
	// calls which wait. For a limit on calls at once: the calls in progress.
	Level float64
	// Full is true only in the reply to the Fillup that reached the brim.
	Full bool
	// Remaining is how many units there is room for now; 0 at the brim and above.
	Remaining float64
	// EmptyIn is how long until the level is 0, if nothing is added.
	EmptyIn time.Duration
	// NextIn is how long until there is room for one more unit; 0: now. For a
	// limit of a capacity below one unit, until it is empty.
	NextIn time.Duration
	// HeldFor is how long a hold still lasts; 0: none does.
	HeldFor time.Duration
	// Reason is why, while a hold lasts; [ReasonUnknown] if nobody has said so.
	Reason Reason
	// Speed is that of the bucket's clock: 1, or less while it recovers from
	// refusals. The leak rate is that much slower.
	Speed float64
}

// State returns the state of the limit nearest its brim, and changes nothing.
func (b *Bucket) State(ctx context.Context) (State, error) {
	all, err := b.States(ctx)
	if err != nil {
		return State{}, err
	}
	return nearest(all), nil
}

// States returns the state of each limit, in the order of the limits, and
// changes nothing.
func (b *Bucket) States(ctx context.Context) ([]State, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	var r reply
	if err := b.peek(ctx, "state", &r); err != nil {
		return nil, err
	}
	return b.states(&r), nil
}

func (b *Bucket) states(r *reply) []State {
	all := make([]State, 0, maxLimits)
	s := &r.State
	for i, l := range r.force.own {
		level := s.Level[i].Level
		over := &r.force.law[i]
		all = append(all, State{
			Limit:     l,
			Level:     level,
			Full:      r.Full[i],
			Remaining: max(0, l.Capacity-level),
			EmptyIn:   s.Real(over.Above(level, 0)),
			NextIn:    s.Real(over.Above(level, max(0, l.Capacity-1))),
			HeldFor:   max(0, s.Rem),
			Speed:     s.Speed,
		})
	}
	for i := range r.given {
		if !r.given[i].atOnce {
			continue
		}
		slots := State{
			Limit:     r.given[i],
			Level:     float64(r.used),
			Remaining: max(0, r.given[i].Capacity-float64(r.used)),
			HeldFor:   max(0, s.Rem),
			Speed:     s.Speed,
		}
		all = append(all[:i], append([]State{slots}, all[i:]...)...)
	}
	if s.Rem > 0 {
		for i := range all {
			all[i].Reason = Reason(s.Why)
		}
	}
	return all
}

// nearest returns the state of the limit nearest its brim.
func nearest(all []State) State {
	best, share := State{}, math.Inf(-1)
	for _, s := range all {
		if of := s.Level / s.Limit.Capacity; of > share {
			best, share = s, of
		}
	}
	return best
}

// Idle reports whether forgetting the bucket would lose nothing: it is empty,
// nobody is booked or in progress, nothing holds or slows it, and its limits
// are those that it was made with. A bucket in a shared store is always idle:
// its state is not here. It is what a [Keyed] asks before it drops a bucket.
func (b *Bucket) Idle() bool {
	if b.unmade() {
		return true
	}
	l := b.slow.Load()
	if l == nil {
		t := int64(now())
		return b.word.Load() <= t && b.seen.Load() <= t-int64(lag)
	}
	if l.store != nil {
		return true
	}
	l.mu.Lock()
	inUse := l.used > int(l.lost.Load()) || l.stored.Version > 0
	l.mu.Unlock()
	if inUse {
		return false
	}
	var r reply
	t := trips.Get().(*trip)
	b.local(l, &step{}, t, &r)
	t.done()
	return r.Expire <= 0
}
