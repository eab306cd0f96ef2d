package outbound

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultKeys = 10_000
	shards      = 32
	// What one new key pays for: looking at so many others, and, when there is
	// no room, at so many in all, a few in each shard.
	lookAt, lookAtAll, lookInShard = 4, 64, 8
	// linger is how long an idle limiter is kept as long as there is room,
	// because its key may come again.
	linger = time.Minute
)

// Keyed is a set of limiters, one for each key: a tenant, a host. Each is made when
// its key is first used, and dropped when nobody can tell it from a new one. Set New
// before first use and change no field afterwards. A Keyed is safe for concurrent use,
// must not be copied, has no goroutine and needs no Close.
//
// A credential, such as a token, is no key: errors, logs and stores show keys. Hash it,
// as ByHeader of package transport does, or set Label, which hides it from errors and
// what is made of them alone.
//
//	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
//		return outbound.NewBucket(tenant, outbound.PerSecond(10))
//	}}
//	permit, err := tenants.Acquire(ctx, "acme", outbound.Cost{1})
//
// For the same as a [Limiter], as in a transport's For, there is [Keyed.For].
//
// A limiter is dropped when its method Idle() bool says that forgetting it
// loses nothing, and no permit of its is out; one without that method, which
// [Bucket], queues and [Unlimited] have, is kept. As long as there is room, an
// idle one stays a minute for its key to come again. A permit whose Done is
// forgotten keeps an idle limiter for five minutes after its last admission.
//
// However many keys come, there are never more than Max limiters, and a call
// looks at some 70 others at most to make room for its own. With buckets of one
// limit that bear their key as name a key costs some 115 to 140 bytes, and the
// key itself, which is kept: cut or hash the long ones.
type Keyed[K comparable] struct {
	// New makes the limiter of a key. It may be called several times at once
	// for one key, and all results but one are then dropped before use. Its
	// error is that of Acquire, a nil Limiter is [ErrNil], and a panic goes on
	// to the caller of Acquire; nothing is kept of any of these. The limiter's
	// method Idle must be quick and must not use the Keyed.
	New func(K) (Limiter, error)
	// Max is the largest number of limiters; 0: 10 000; a negative one is
	// [ErrInvalidLimit] at Acquire.
	Max int
	// Label names a key in errors, and so in events and logs: their Key is the label
	// in the place of the bucket's own. nil: that stays. Where New, or a limiter of your
	// own, has wrapped such an error, the wrapper's text is not shown, but errors.Is and
	// errors.As still find what it wraps. Other errors, and those of Overflow, stay as
	// they are.
	Label func(K) string
	// Overflow serves all keys for which there is no room; nil: they are
	// refused.
	Overflow Limiter

	once   sync.Once
	seed   maphash.Seed
	shards *[shards]keyShard[K]
	count  atomic.Int64  // limiters in all shards, never above Max
	hand   atomic.Uint32 // the shard where the next search for room begins
}

// For returns the limiter of a key. It is a handle, which makes nothing yet and
// looks its limiter up at each Acquire, so it may be kept for as long as you
// like and costs one small allocation. Handles of one key are equal. Its method Use, for [As], is
// [Keyed.Use] of the key.
//
// The errors of its Acquire are those of the key's limiter and of New. Where
// there is no room for the key and no Overflow, it is a [*ThrottledError] with
// [ErrFull], because room comes back with time, though nobody knows when: its
// RetryAfter is 0. A key that does not equal itself, as NaN does not, is
// [ErrInvalidKey]; one of an interface type that holds something that cannot be
// compared panics, as it does in a map.
func (k *Keyed[K]) For(key K) Limiter { return handle[K]{k, key} }

// Len returns the number of limiters that there are.
func (k *Keyed[K]) Len() int {
	if k == nil {
		return 0
	}
	return int(k.count.Load())
}

// All returns the keys that have limiters now, with these, in no order: to look at all
// tenants, or for the fullest of them. It takes no lock, makes no limiter, and keeps none from being dropped: to
// change one, take [Keyed.Use]. A key that comes, goes or moves in the table meanwhile may be
// left out, or come twice. A look at a million keys takes some 100 ms, most of it for memory that is not in a cache.
func (k *Keyed[K]) All() iter.Seq2[K, Limiter] {
	return func(yield func(K, Limiter) bool) {
		if k == nil || k.count.Load() == 0 { // above 0 the shards are made
			return
		}
		for i := range k.shards {
			if !k.shards[i].all(yield) {
				return
			}
		}
	}
}

type handle[K comparable] struct {
	keyed *Keyed[K]
	key   K
}

func (h handle[K]) Acquire(ctx context.Context, c Cost) (Permit, error) {
	return h.keyed.Acquire(ctx, h.key, c)
}

// Idle is true: forgetting a handle loses nothing.
func (h handle[K]) Idle() bool { return true }

// Use calls f with the key's limiter, as Use of the Keyed does.
func (h handle[K]) Use(f func(Limiter) error) error { return h.keyed.Use(h.key, f) }

// Use calls f with the limiter of a key, such as its [*Bucket], to look at it or to change
// it: an operator holds one tenant, or sets its limits. Use makes the limiter if
// there is none, and does not drop it before f returns. A bucket that is held, or that has
// limits that were set, stays after that as well. The error is f's, with the label, or, as in For, the one of making
// the limiter. Where there is no room for the key it is [ErrFull], also with an Overflow,
// which is not the key's own.
func (k *Keyed[K]) Use(key K, f func(Limiter) error) error {
	if k == nil || f == nil {
		return fmt.Errorf("%w: Keyed, or what is to use its limiter", ErrNil)
	}
	s, hash := k.shard(key)
	for {
		e, err := k.entry(s, hash, key)
		if err != nil {
			return err
		}
		if e.Limiter == nil {
			return &ThrottledError{Err: ErrFull}
		}
		if e.pin() && s.get(hash, key).pins != e.pins {
			e.pins.Add(-1)
			continue
		}
		defer e.pins.Add(-1)
		e.touch()
		if err = f(e.Limiter); err != nil {
			err = k.labelled(key, err)
		}
		return err
	}
}

// Acquire is For(key).Acquire(ctx, c) without the handle: it allocates nothing
// where the key has a bucket of one limit.
func (k *Keyed[K]) Acquire(ctx context.Context, key K, c Cost) (p Permit, err error) {
	if k == nil {
		return p, fmt.Errorf("%w: Keyed", ErrNil)
	}
	s, hash := k.shard(key)
	e := s.find(hash, key)
	b, ok := e.Limiter.(*Bucket)
	if !ok {
		return k.acquire(ctx, s, hash, key, c)
	}
	if p, err = b.Acquire(ctx, c); err != nil {
		return p, k.labelled(key, err)
	}
	// Only now the permit is counted. The bucket may have been dropped since it
	// was found, and another made for the key.
	e.touch()
	if e.pin() && s.get(hash, key).pins != e.pins {
		p.Settle(Cost{})
		p.Done()
		e.pins.Add(-1)
		return k.acquire(ctx, s, hash, key, c)
	}
	p.pin = e.pins
	return p, nil
}

// acquire is Acquire for a limiter that is to be made, or is no bucket.
func (k *Keyed[K]) acquire(ctx context.Context, s *keyShard[K], hash uint64, key K, c Cost) (Permit, error) {
	for {
		err := ctx.Err()
		e := s.find(hash, key)
		if e.Limiter == nil && err == nil {
			e, err = k.entry(s, hash, key)
		}
		if err != nil {
			return Permit{}, err
		}
		if e.Limiter == nil {
			return k.Overflow.Acquire(ctx, c)
		}
		p, err := e.Acquire(ctx, c)
		if err != nil {
			return Permit{}, k.labelled(key, err)
		}
		e.touch()
		if !e.pin() || s.get(hash, key).pins == e.pins {
			if p.pin != nil { // that of a Keyed in this one
				inner := p
				p = NewPermit(&inner)
			}
			p.pin = e.pins
			return p, nil
		}
		p.Settle(Cost{})
		p.Done()
		e.pins.Add(-1)
	}
}

// labelled returns the error of a key's limiter, or of New, with the key's label.
func (k *Keyed[K]) labelled(key K, err error) error {
	if k.Label == nil {
		return err
	}
	label := k.Label(key)
	switch e := err.(type) {
	case *ThrottledError:
		return e.labelled(label)
	case *CostError:
		return e.labelled(label)
	case *LimitError:
		return e.labelled(label)
	case *StoreError:
		return e.labelled(label)
	}
	var (
		throttled *ThrottledError
		cost      *CostError
		limit     *LimitError
		store     *StoreError
	)
	switch { // the refusal before an error that wraps it
	case errors.As(err, &throttled):
		return &relabelled{throttled.labelled(label), err}
	case errors.As(err, &cost):
		return &relabelled{cost.labelled(label), err}
	case errors.As(err, &limit):
		return &relabelled{limit.labelled(label), err}
	case errors.As(err, &store):
		return &relabelled{store.labelled(label), err}
	}
	return err
}

// relabelled is an error that wraps one with a key. It tells that one with the label, and not
// the wrapper's text, which may show the key.
type relabelled struct{ own, err error }

func (e *relabelled) Error() string { return e.own.Error() }

// Unwrap has errors.As find the error with the label first.
func (e *relabelled) Unwrap() []error { return []error{e.own, e.err} }

// shard returns where a key belongs, and its hash.
func (k *Keyed[K]) shard(key K) (s *keyShard[K], hash uint64) {
	k.once.Do(func() {
		k.seed = maphash.MakeSeed()
		k.shards = new([shards]keyShard[K])
	})
	if name, ok := any(key).(string); ok {
		hash = maphash.String(k.seed, name)
	} else {
		hash = maphash.Comparable(k.seed, key)
	}
	return &k.shards[hash%shards], hash
}

// entry returns the limiter of a key, and makes it if there is none; none: Overflow is to
// serve the key, or nobody.
func (k *Keyed[K]) entry(s *keyShard[K], hash uint64, key K) (entry, error) {
	if e := s.get(hash, key); e.Limiter != nil {
		return e, nil
	}
	switch {
	case key != key: // as NaN is: it would never be found again
		return entry{}, fmt.Errorf("%w: a %T that does not equal itself", ErrInvalidKey, key)
	case k.New == nil:
		return entry{}, fmt.Errorf("%w: New of Keyed", ErrNil)
	case k.Max < 0:
		return entry{}, fmt.Errorf("%w: Max of Keyed is %d", ErrInvalidLimit, k.Max)
	}
	most := int64(k.Max)
	if most == 0 {
		most = defaultKeys
	}
	var own Limiter
	for k.count.Load() < most || k.makeRoom() {
		if own == nil { // with no lock held
			made, err := k.New(key)
			if err != nil {
				return entry{}, k.labelled(key, err)
			}
			b, bucket := made.(*Bucket)
			if made == nil || bucket && b == nil {
				return entry{}, fmt.Errorf("%w: Limiter from New of Keyed", ErrNil)
			}
			if own = made; !bucket {
				own = &guest{Limiter: made}
			}
		}
		if e := k.put(s, hash, key, own, most); e.Limiter != nil {
			return e, nil
		}
	}
	if e := s.get(hash, key); e.Limiter != nil { // another call was faster, and took the room
		return e, nil
	}
	if k.Overflow == nil {
		return entry{}, &ThrottledError{Err: fmt.Errorf("%w: %d are in use", ErrFull, most)}
	}
	return entry{}, nil
}

// put stores a limiter unless the key has one, and returns that which counts;
// none: there is no room.
func (k *Keyed[K]) put(s *keyShard[K], hash uint64, key K, own Limiter, most int64) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(hash, key); e.Limiter != nil {
		return e
	}
	s.sweepLocked(lookAt, linger, &k.count)
	for {
		n := k.count.Load()
		if n >= most {
			return entry{}
		}
		if k.count.CompareAndSwap(n, n+1) {
			break
		}
	}
	e := entryOf(own)
	e.keep()
	e.touch()
	s.insertLocked(hash, key, own)
	return e
}

// makeRoom drops what is idle in one shard after the other, until some was.
func (k *Keyed[K]) makeRoom() bool {
	at := k.hand.Add(lookAtAll / lookInShard)
	for i, looked := uint32(0), 0; i < shards && looked < lookAtAll; i++ {
		s := &k.shards[(at+i)%shards]
		s.mu.Lock()
		n, dropped := s.sweepLocked(lookInShard, 0, &k.count)
		s.mu.Unlock()
		if dropped {
			return true
		}
		looked += n
	}
	return false
}
