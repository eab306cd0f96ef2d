package outbound

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A new key looks at a few keys of its shard, and at more of all shards if the Keyed is full.
	defaultKeys, shards, lookAt, lookAtAll, lookInShard = 10_000, 32, 4, 64, 8
	// linger is how long an idle limiter is kept while the Keyed is not full: its key may come
	// again. forgotten is how long a permit keeps its limiter from being dropped, if that is idle:
	// longer than a call takes, and an end to what a forgotten Done costs.
	linger, forgotten = time.Minute, 5 * time.Minute
	// asking is added to the pins for each call that is in Acquire or Use.
	asking = 1 << 32
)

// seed is of the hashes that select the shard of a key.
var seed = maphash.MakeSeed()

// Keyed is a set of limiters, one for each key: a tenant, a host. Each is made when its key is
// first used, and dropped when it equals a new one. Set the fields before first use. A Keyed is
// safe for concurrent use, must not be copied, and has no goroutine.
//
// Do not use a credential, such as a token, as a key: errors, logs and stores show keys. Hash it,
// as ByHeader of package transport does. Label hides it from errors only.
//
//	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
//		return outbound.NewBucket(tenant, outbound.PerSecond(10))
//	}}
//	permit, err := tenants.Acquire(ctx, "acme", outbound.Cost{1})
//
// One key on hold can take all workers of a small pool, because each waits for it. Then use queues
// with a MaxWait of about 300 ms, and try again after a [ThrottledError]'s RetryAfter.
//
// [Keyed.For] returns a [Limiter], for instance for a transport's For.
//
// A limiter is dropped when its method Idle() bool returns true, and no call is in its Acquire or
// uses its permits. [Bucket], queues and [Unlimited] have that method; a limiter without it is
// kept. While the Keyed is not full, an idle limiter stays a minute for its key to come again. A
// permit whose Done is forgotten keeps an idle limiter for five minutes after its last admission.
//
// Limiters of several keys may be around one bucket: a queue for each tenant, and one bucket
// for all. Such a queue is dropped when no call waits in it, however busy the bucket is. The
// last limiter around a bucket is kept until the bucket is idle, so a bucket that New makes
// for one key alone is never forgotten before.
//
// There are at most Max limiters. A call looks at about 70 other limiters at most to find an idle
// one to replace. With buckets of one limit a key takes less than 190 bytes and the key itself: cut
// or hash long keys.
type Keyed[K comparable] struct {
	// New makes the limiter of a key. Concurrent calls may make it run more than once for a key; one
	// result is used. Acquire returns its error, [ErrInvalid] for a nil Limiter, and passes on its
	// panic, and keeps none of these. The limiter's method Idle must be quick and must not use the
	// Keyed.
	New func(K) (Limiter, error)
	// Max is the largest number of limiters. If it is zero, it is 10 000. If it is negative, Acquire
	// returns [ErrInvalid].
	Max int
	// Label names a key in errors, and so in events and logs: their Key is the label instead of the
	// bucket's key. If Label is nil, they have the bucket's key. If New or a limiter of your own has
	// wrapped such an error, the wrapper's text is hidden, but errors.Is and errors.As still find
	// what it wraps. Other errors, and those of Overflow, stay as they are.
	Label func(K) string
	// Overflow serves all further keys while the Keyed is full. If it is nil, they are refused.
	Overflow Limiter

	shards [shards]keyShard[K]
	count  atomic.Int64  // limiters in all shards, never above Max
	hand   atomic.Uint32 // the shard where the next search for an idle limiter begins
}

// For returns the limiter of a key. It is a handle that finds or makes the limiter at each Acquire,
// so it may be kept. It costs one small allocation. Handles of one key are equal. Its method Use,
// for [As], is [Keyed.Use] of the key.
//
// The errors of its Acquire are those of the key's limiter and of New. If the Keyed is full and has
// no Overflow, it is a [*ThrottledError] with [ErrFull], and a RetryAfter of 0: when another key is
// dropped is unknown. A key that differs from itself, such as NaN, is [ErrInvalid]. A key of an
// interface type with a value that cannot be compared panics, as in a map.
func (k *Keyed[K]) For(key K) Limiter { return handle[K]{k, key} }

// Len returns the number of limiters that there are.
func (k *Keyed[K]) Len() int {
	if k == nil {
		return 0
	}
	return int(k.count.Load())
}

// All returns the keys that have limiters now, and the limiters, in no order: to look at all
// tenants, or for the fullest one. It makes no limiter, and a limiter may be dropped meanwhile:
// to change one, call [Keyed.Use]. A key that comes or goes meanwhile may be left out. All
// copies a 32nd of the keys at a time, and holds no lock while the loop's body runs.
func (k *Keyed[K]) All() iter.Seq2[K, Limiter] {
	return func(yield func(K, Limiter) bool) {
		if k == nil {
			return
		}
		for i := range k.shards {
			s := &k.shards[i]
			s.mu.Lock()
			all := maps.Clone(s.entries)
			s.mu.Unlock()
			for key, e := range all {
				if !yield(key, e.Limiter) {
					return
				}
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

// Use calls f with the limiter of a key, such as its [*Bucket], to look at it or to change it: an
// operator holds one tenant, or sets its limits. Use makes the limiter if necessary. The Keyed
// keeps it until f returns, and longer if its bucket is held or has new limits. The error is f's,
// with the label, or, as in For, the one of making the limiter. If the Keyed is full it is
// [ErrFull], even with an Overflow, which belongs to all keys.
func (k *Keyed[K]) Use(key K, f func(Limiter) error) error {
	if k == nil || f == nil {
		return fmt.Errorf("%w: nil Keyed or function of Use", ErrInvalid)
	}
	e, err := k.entry(context.Background(), key)
	if err != nil {
		return err
	}
	if e == nil {
		return &ThrottledError{Err: ErrFull}
	}
	defer e.pins.Add(-asking)
	e.touch()
	return k.labelled(key, f(e.Limiter))
}

// Acquire is For(key).Acquire(ctx, c) without the handle. It allocates nothing if the key has
// a bucket of one limit.
func (k *Keyed[K]) Acquire(ctx context.Context, key K, c Cost) (Permit, error) {
	if k == nil {
		return Permit{}, fmt.Errorf("%w: nil Keyed", ErrInvalid)
	}
	e, err := k.entry(ctx, key)
	if err != nil {
		return Permit{}, err
	}
	if e == nil {
		return k.Overflow.Acquire(ctx, c)
	}
	defer e.pins.Add(-asking)
	p, err := e.Acquire(ctx, c)
	if err != nil {
		return p, k.labelled(key, err)
	}
	e.touch()
	e.pins.Add(1)
	if p.pin != nil { // that of a Keyed in this one
		inner := p
		p = NewPermit(&inner)
	}
	p.pin = &e.pins
	return p, nil
}

// labelled returns the error of a key's limiter, or of New, with the key's label.
func (k *Keyed[K]) labelled(key K, err error) error {
	if k.Label == nil || err == nil {
		return err
	}
	return relabel(err, k.Label(key))
}

// shard returns where a key belongs.
func (k *Keyed[K]) shard(key K) *keyShard[K] {
	if name, ok := any(key).(string); ok {
		return &k.shards[maphash.String(seed, name)%shards]
	}
	return &k.shards[maphash.Comparable(seed, key)%shards]
}

// entry returns the limiter of a key, pinned by one call that asks it, and makes it if there is
// none and ctx is not done. If the Keyed is full, it returns nil, or without an Overflow an error.
func (k *Keyed[K]) entry(ctx context.Context, key K) (*entry, error) {
	s, most := k.shard(key), int64(cmp.Or(k.Max, defaultKeys))
	e := k.put(s, key, nil, most)
	switch {
	case e != nil:
		return e, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case key != key: // as NaN is: it would never be found again
		return nil, fmt.Errorf("%w: a %T that does not equal itself", ErrInvalid, key)
	case k.New == nil:
		return nil, fmt.Errorf("%w: nil New of Keyed", ErrInvalid)
	case k.Max < 0:
		return nil, fmt.Errorf("%w: Max of Keyed is %d", ErrInvalid, k.Max)
	}
	for own := (*entry)(nil); k.count.Load() < most || k.makeRoom(); {
		if own == nil { // with no lock held
			made, err := k.New(key)
			if err != nil {
				return nil, k.labelled(key, err)
			}
			if b, bucket := made.(*Bucket); made == nil || bucket && b == nil {
				return nil, fmt.Errorf("%w: nil Limiter from New of Keyed", ErrInvalid)
			}
			own = &entry{Limiter: made}
			own.seen.Store(never)
		}
		if e = k.put(s, key, own, most); e != nil {
			return e, nil
		}
	}
	// Another call for the key may have been faster.
	if e = k.put(s, key, nil, most); e != nil || k.Overflow != nil {
		return e, nil
	}
	return nil, &ThrottledError{Err: fmt.Errorf("%w: %d are in use", ErrFull, most)}
}

// put returns the limiter of a key, pinned. If the key has none and own is not nil, put stores
// own. It returns nil if there is none, or if the Keyed is full.
func (k *Keyed[K]) put(s *keyShard[K], key K, own *entry, most int64) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		if own == nil {
			return nil
		}
		s.sweepLocked(lookAt, linger, &k.count)
		if n := k.count.Load(); n >= most || !k.count.CompareAndSwap(n, n+1) {
			return nil // full, or another call was faster: entry tries again
		}
		if s.entries == nil {
			s.entries = map[K]*entry{}
		}
		e = own
		if b := e.bucket(); b != nil {
			b.core.Keys.Add(1)
		}
		e.touch()
		s.entries[key] = e
	}
	e.pins.Add(asking)
	return e
}

// makeRoom drops idle limiters of one shard after the other, until it has dropped some.
func (k *Keyed[K]) makeRoom() (dropped bool) {
	at := k.hand.Add(lookAtAll / lookInShard)
	for i, looked := uint32(0), 0; i < shards && looked < lookAtAll && !dropped; i++ {
		s, n := &k.shards[(at+i)%shards], 0
		s.mu.Lock()
		n, dropped = s.sweepLocked(lookInShard, 0, &k.count)
		s.mu.Unlock()
		looked += n
	}
	return dropped
}

// entry is a limiter of a [Keyed]. Pins are added under the lock of its shard, or by a call
// that has pinned it already.
type entry struct {
	Limiter
	pins atomic.Int64 // permits in use, and asking for each call that has the limiter now
	seen atomic.Int64 // when it last admitted a call, unless its word notes that
}

// touch notes that the limiter has admitted a call. A word notes that by itself.
func (e *entry) touch() {
	if b, ok := e.Limiter.(*Bucket); ok && !b.isZero() {
		if _, here := b.core.Word.Load(); here {
			return
		}
	}
	e.seen.Store(int64(now()))
}

// bucket returns the bucket that the limiter is, or is around.
func (e *entry) bucket() *Bucket {
	if q, ok := As[interface{ Bucket() *Bucket }](e.Limiter); ok {
		return q.Bucket()
	}
	b, _ := As[*Bucket](e.Limiter)
	return b
}

// drop reports whether to drop the limiter at time t, if it has been unused for a while. A bucket
// that is not idle stays with the last limiter around it.
func (e *entry) drop(t, unused time.Duration) bool {
	pins := e.pins.Load()
	if pins > 0 {
		unused = forgotten
	}
	seen, b := e.seen.Load(), e.bucket()
	if own, ok := e.Limiter.(*Bucket); ok && own.core.Word.Used() {
		seen = max(seen, own.core.Word.Seen())
	}
	// A subtraction could overflow: a bucket that was never used was last used at the
	// beginning of time.
	if i, ok := e.Limiter.(idler); !ok || pins >= asking || time.Duration(seen) > t-unused || !i.Idle() {
		return false
	}
	if b != nil && b.core.Keys.Add(-1) == 0 && !b.isZero() && !b.core.Idle() {
		b.core.Keys.Add(1)
		return false
	}
	return true
}

// keyShard is a part of a [Keyed].
type keyShard[K comparable] struct {
	mu      sync.Mutex // protects entries, and every decision to drop one
	entries map[K]*entry
	_       [48]byte // a cache line of its own
}

// sweepLocked looks at a few limiters, chosen by the order of a map, and drops those that have
// not been used for a while and are idle.
func (s *keyShard[K]) sweepLocked(most int, unused time.Duration, count *atomic.Int64) (looked int, dropped bool) {
	t := now()
	for key, e := range s.entries {
		if looked == most {
			break
		}
		if looked++; e.drop(t, unused) {
			delete(s.entries, key)
			count.Add(-1)
			dropped = true
		}
	}
	return looked, dropped
}
