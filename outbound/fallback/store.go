package fallback

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Store is a [leak.Store] around a store that may be away, such as one across a
// network. It decides what calls do meanwhile, for every bucket that uses it. The package's
// introduction says how an outage begins and ends.
//
// A Store must not be copied or changed after its first use.
type Store struct {
	// Store is the store that may be away. It says so by [outbound.ErrAway]; a store
	// that does not know this error is never marked away. If Store is nil, each Update
	// fails with [outbound.ErrNil].
	Store leak.Store
	// Share is the part of every limit that this worker may use by itself while the
	// store is away: 1 divided by the number of workers. 0 is none. If Share is not 0 to
	// 1, each Update fails with an [*outbound.LimitError]. In an outage at most 10 000
	// keys have a share; calls of others fail with the store's error, as calls do where the
	// share of an hour, a day or a month is less than they cost.
	Share float64
	// Unlimited lets every call go while the store is away, except in a hold. Beyond
	// 10 000 keys the Store heeds only holds from before the outage, and does not charge
	// what goes. With a Share each Update fails with an [*outbound.LimitError].
	Unlimited bool
	// OnSwitch, if not nil, is called when the store is found away, with its error,
	// and when it is used again. Calls come from any goroutine, one after the other. OnSwitch
	// must not block.
	OnSwitch func(away bool, err error)

	anySeen atomic.Bool // seen or levels is not empty

	mu         sync.Mutex // protects what follows
	breaker    breaker
	keys       map[string]*degradedKey
	seen       map[string]lastSeen
	levels     map[string]lastLevels
	notices    []func() // the calls of OnSwitch that are still to make
	announcing bool     // a goroutine makes them
}

const (
	// returnWait is how long workers stay on their shares after the first of them has
	// reached the store: long enough for a try of the last one that fails after 2 s, and
	// for its next.
	returnWait = maxRetry + 2*time.Second
	// chargePause is how long no call goes at the return, so that every worker charges
	// what it has spent before the first call goes.
	chargePause = 100 * time.Millisecond
	// maxKeys bounds the degraded keys, the keys in seen and those in levels.
	maxKeys = 10_000
	// meetingKey is the key under which workers agree on their return.
	meetingKey = "\x00fallback"
)

// storeKey returns the store's key for a bucket's key. It is never the meetingKey.
func storeKey(key string) string {
	if rest, ok := strings.CutPrefix(key, meetingKey); ok {
		return meetingKey + "\x00" + rest
	}
	return key
}

// Update implements [leak.Store].
func (s *Store) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := s.check(key); err != nil {
		return leak.Reply{}, err
	}
	key = storeKey(key)
	for !s.breaker.in(there) {
		if err := ctx.Err(); err != nil {
			return leak.Reply{}, err
		}
		if r, done, err := s.detour(ctx, key, op); done {
			return r, err
		}
	}
	return s.ask(ctx, key, op)
}

func (s *Store) check(key string) error {
	switch {
	case s == nil || s.Store == nil:
		return fmt.Errorf("fallback: %w: Store", outbound.ErrNil)
	case !(s.Share >= 0 && s.Share <= 1):
		return &outbound.LimitError{Key: key, Reason: "the Share of a fallback.Store is 0 to 1, not " + strconv.FormatFloat(s.Share, 'g', 6, 64)}
	case s.Share > 0 && s.Unlimited:
		return &outbound.LimitError{Key: key, Reason: "a fallback.Store has a Share or is Unlimited, not both"}
	}
	return nil
}

// fails reports whether calls fail while the store is away.
func (s *Store) fails() bool { return s.Share == 0 && !s.Unlimited }

// ask asks the store, and serves the call without it if it is away.
func (s *Store) ask(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	if err == nil {
		s.remember(key, op, &r)
		return r, nil
	}
	if ctx.Err() != nil || !errors.Is(err, leak.ErrAway) {
		return r, err
	}
	s.leave(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.breaker.in(away) { // it has come back meanwhile
		return r, err
	}
	return s.serveLocked(key, op, err)
}

// detour serves a call while the store is away, or has it wait during the return. If it
// reports false, the caller looks at the state again.
func (s *Store) detour(ctx context.Context, key string, op *leak.Op) (r leak.Reply, done bool, err error) {
	s.mu.Lock()
	if s.breaker.in(away) {
		if s.fails() && now() >= s.breaker.nextTry {
			s.breaker.nextTry = never
			cause := s.breaker.cause
			s.mu.Unlock()
			r, err = s.tryWith(ctx, key, op, cause)
			return r, true, err
		}
		r, err = s.serveLocked(key, op, s.breaker.cause)
		s.mu.Unlock()
		return r, true, err
	}
	k, pause := s.keys[key], s.breaker.opens-now()
	var d *debt
	if k != nil {
		if d = k.hear(op); d == nil {
			s.mu.Unlock()
			return leak.Reply{Stale: true, Version: noVersion}, true, nil
		}
	}
	s.settleLocked()
	s.mu.Unlock()
	if k != nil {
		c := s.awaitCharge(ctx, key, k)
		if c == nil {
			return r, false, nil
		}
		if c.err != nil {
			return r, true, c.err
		}
		r, untimely := c.untimely[d]
		if untimely || len(c.untimely) == 0 {
			return r, untimely, nil
		}
		// Calls by other limits tell the periods of the debts that are left.
	}
	if pause > 0 {
		sleep(ctx, pause)
		return r, false, nil
	}
	r, err = s.ask(ctx, key, op)
	return r, true, err
}

// sleep sleeps for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
