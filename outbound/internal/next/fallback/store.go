package fallback

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Store is a [store.Store] around a store that may be unavailable, such as one across a network. It
// decides what calls do meanwhile, for every bucket that uses it. The package's introduction says
// how an outage begins and ends.
//
// A Store must not be copied or changed after its first use.
type Store struct {
	// Store is the store that may be unavailable. It says so by [store.ErrUnavailable]. If Store is
	// nil, each Update fails.
	Store store.Store
	// Share is the part of every limit that this process may use by itself while the store is
	// unavailable: 1 divided by the number of processes. If it is zero, calls fail with the store's
	// error. If it is not 0 to 1, each Update fails. In an outage at most 10_000 keys have a share;
	// calls of others fail with the store's error.
	Share float64
	// Unlimited admits every call while the store is unavailable, except in a hold. Beyond 10_000
	// keys the Store honours only holds from before the outage, and does not charge what leaves.
	// With a Share each Update fails.
	Unlimited bool
	// OnSwitch, if it is not nil, is called when the first key is away, with the store's error, and
	// when no key is away any more. It does not hear of a switch that is over before it is told. Calls come from any goroutine, one after the other. OnSwitch
	// must not block.
	OnSwitch func(away bool, err error)

	any atomic.Bool // keys or seen is not empty

	mu         sync.Mutex // protects what follows
	keys       map[string]*away
	seen       map[string]seen
	since      time.Time // of the last switch
	outages    uint64
	cause      error // the store's latest error
	back       bool  // the store has answered since, and keys are charged
	told       bool  // what OnSwitch was told last
	announcing bool  // a goroutine calls OnSwitch
}

// maxKeys bounds the keys that are away, and those in seen.
const maxKeys = 10_000

// start is the zero of this process's clock, which does not step.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// unix returns the Unix time. It steps when somebody sets the clock.
func unix() time.Duration { return time.Duration(time.Now().UnixNano()) }

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if err := s.check(); err != nil {
		return store.Reply{}, err
	}
	for tried := false; !s.fails() && s.any.Load(); {
		if err := ctx.Err(); err != nil {
			return store.Reply{}, err
		}
		s.mu.Lock()
		k := s.keys[key]
		if k == nil || tried && k.stuck { // if it is stuck the store says why
			s.mu.Unlock()
			break
		}
		if k.charging == nil && !s.back && !k.stuck {
			r, err := s.serveLocked(key, op)
			s.mu.Unlock()
			return r, err
		}
		if store.Same(op.Limits, k.look.Limits) {
			k.look.Periods = op.Periods
		}
		charging := s.chargeLocked(key, k)
		s.mu.Unlock()
		select {
		case <-charging:
			tried = true
		case <-ctx.Done():
		}
	}
	return s.ask(ctx, key, op)
}

func (s *Store) check() error {
	switch {
	case s == nil || s.Store == nil:
		return errors.New("fallback: the Store of a fallback.Store is nil")
	case !(s.Share >= 0 && s.Share <= 1):
		return fmt.Errorf("fallback: the Share of a fallback.Store is 0 to 1, not %s", strconv.FormatFloat(s.Share, 'g', 6, 64))
	case s.Share > 0 && s.Unlimited:
		return errors.New("fallback: a fallback.Store has a Share or is Unlimited, not both")
	}
	return nil
}

// fails reports whether calls fail while the store is unavailable.
func (s *Store) fails() bool { return s.Share == 0 && !s.Unlimited }

// ask asks the store, and serves the call without it if it is unavailable.
func (s *Store) ask(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	switch {
	case err == nil:
		s.remember(key, op, &r)
	case ctx.Err() == nil && errors.Is(err, store.ErrUnavailable):
		s.mu.Lock()
		s.cause, s.back = err, false
		s.goAwayLocked(key, op)
		if k := s.keys[key]; k == nil || k.charging == nil { // else what it spends here would not be charged
			r, err = s.serveLocked(key, op)
		}
		s.mu.Unlock()
		s.announce()
	}
	return r, err
}

// goAwayLocked marks a key away.
func (s *Store) goAwayLocked(key string, op *store.Op) {
	if k := s.keys[key]; k != nil || len(s.keys) >= maxKeys {
		return
	}
	if s.keys == nil {
		s.keys = make(map[string]*away)
	}
	if s.keys[key] = newAway(op); len(s.keys) > 1 {
		return
	}
	s.any.Store(true)
	s.since = time.Now()
	s.outages++
	s.later(again)
}

// comeBackLocked has calls of a key use the store again.
func (s *Store) comeBackLocked(key string) {
	delete(s.keys, key)
	if len(s.keys) > 0 {
		return
	}
	s.any.Store(len(s.seen) > 0)
	s.since = time.Now()
	s.cause, s.back = nil, false
}

// announce calls OnSwitch if that is due. If another goroutine calls it, that one does it again.
func (s *Store) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for is := len(s.keys) > 0; s.OnSwitch != nil && !s.announcing && is != s.told; is = len(s.keys) > 0 {
		s.told, s.announcing = is, true
		s.switchLocked(is, s.cause)
	}
}

// switchLocked calls OnSwitch without the lock.
func (s *Store) switchLocked(away bool, cause error) {
	s.mu.Unlock()
	defer func() { // OnSwitch may panic
		s.mu.Lock()
		s.announcing = false
	}()
	s.OnSwitch(away, cause)
}
