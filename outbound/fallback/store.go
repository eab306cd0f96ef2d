package fallback

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Store is a [store.Store] around a store that may be unavailable, such as one across a network. It
// decides what calls do meanwhile, for every bucket that uses it. The package's introduction says
// how an outage begins and ends.
//
// A Store must not be copied or changed after its first use.
type Store struct {
	// Store is the store that may be unavailable. Its errors then match [store.ErrUnavailable]. If
	// Store is nil, each Update fails.
	Store store.Store
	// Share is the part of every limit that this process may use by itself while the store is
	// unavailable: 1 divided by the number of processes. If it is zero, calls fail with the store's
	// error. If it is not 0 to 1, each Update fails. In an outage at most 10_000 keys have a share.
	// Calls of further keys fail with the store's error.
	Share float64
	// Unlimited admits every call while the store is unavailable, except in a hold. Beyond 10_000
	// keys the Store honours only holds from before the outage, and does not charge what leaves.
	// With a Share each Update fails.
	Unlimited bool
	// If OnSwitch is not nil, it is called when the first key is away, with the store's error, and
	// when the last one has returned. A switch that ends before its report is not reported. Calls
	// come from any goroutine, one at a time. OnSwitch must not block.
	OnSwitch func(away bool, err error)

	mu         sync.Mutex // protects what follows
	keys       map[string]*away
	seen       map[string]seen
	slots      map[string]*slots
	since      time.Time // when Unavailable last changed
	outages    uint64
	cause      error // the store's latest error
	reported   bool  // what OnSwitch has reported last
	announcing bool  // a goroutine calls OnSwitch
}

// maxKeys bounds the keys that are away, and those in seen.
const maxKeys = 10_000

// start is the zero of this process's clock, which does not step.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// unix returns the Unix time. It steps when the clock is set.
func unix() time.Duration { return time.Duration(time.Now().UnixNano()) }

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if s == nil || s.Store == nil || !(s.Share >= 0 && s.Share <= 1) || s.Share > 0 && s.Unlimited {
		return store.Reply{}, errors.New("fallback: Store needs a Store, and a Share of 0 to 1 or Unlimited")
	}
	s.mu.Lock()
	if s.keys == nil {
		s.keys, s.seen, s.slots = make(map[string]*away), make(map[string]seen), make(map[string]*slots)
	}
	if op.Action == store.Allot {
		s.mu.Unlock()
		return s.allot(ctx, key, op)
	}
	k := s.keys[key]
	books := op.Action == store.Book && len(op.Costs) > 0 && op.Move == nil
	switch {
	case k == nil, s.fails(), ctx.Err() != nil, !k.back.IsZero() && !books:
		s.mu.Unlock()
		return s.ask(ctx, key, op)
	case k.back.IsZero():
		defer s.mu.Unlock()
		return s.serveLocked(k, op)
	}
	both, was := *op, k.spent
	both.Reports, both.Unused = nil, nil
	here, err := s.serveLocked(k, &both)
	k.spent = was // the store books what leaves
	s.mu.Unlock()
	if err != nil || here.Stale {
		return here, err
	}
	both.Reports, both.Unused, both.Costs = op.Reports, op.Unused, op.Costs[:len(here.Charges)]
	if len(here.Charges) > 0 {
		in, _ := here.State.Due(here.Charges[0].Place)
		both.After = max(op.After, in)
	}
	r, err := s.ask(ctx, key, &both)
	if len(here.Charges) == 0 && err == nil && !r.Stale && !r.Untimely {
		return here, nil
	}
	return r, err
}

// fails reports whether calls fail while the store is unavailable.
func (s *Store) fails() bool { return s.Share == 0 && !s.Unlimited }

// ask asks the store. If it is unavailable, the key's share answers.
func (s *Store) ask(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	if err == nil {
		s.remember(key, op, &r)
	}
	if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
		return r, err
	}
	defer s.announce()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = err
	k := s.keys[key]
	if k == nil {
		if k = newAway(key, op); len(s.keys) < maxKeys {
			s.goAwayLocked(k)
		} else if !s.Unlimited { // else k is for this call
			return r, err
		}
	}
	if s.fails() {
		return r, err
	}
	k.leave()
	return s.serveLocked(k, op)
}

// goAwayLocked marks a key away.
func (s *Store) goAwayLocked(k *away) {
	if s.keys[k.key] = k; len(s.keys) == 1 {
		s.since = time.Now()
		s.outages++
		s.later()
	}
}

// comeBackLocked has calls of a key use only the store again.
func (s *Store) comeBackLocked(k *away) {
	if delete(s.keys, k.key); len(s.keys) == 0 {
		s.since, s.cause = time.Now(), nil
	}
}

// announce calls OnSwitch if that is due. If another goroutine calls it, that one does it again.
func (s *Store) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for is := len(s.keys) > 0; s.OnSwitch != nil && !s.announcing && is != s.reported; is = len(s.keys) > 0 {
		s.reported, s.announcing = is, true
		func(cause error) {
			s.mu.Unlock()
			defer func() { // OnSwitch may panic
				s.mu.Lock()
				s.announcing = false
			}()
			s.OnSwitch(is, cause)
		}(s.cause)
	}
}
