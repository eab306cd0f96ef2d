package outbound

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// forgotten is how long a permit keeps its limiter from being dropped, if that is idle:
	// longer than a call takes, and an end to what a forgotten Done costs.
	forgotten = 5 * time.Minute
	// asking is added to the pins for each call that is in Acquire or Use.
	asking = 1 << 32
)

// entry is a limiter of a [Keyed]. Pins are added under the lock of its shard, or by a call
// that has pinned it already.
type entry struct {
	Limiter
	pins atomic.Int64 // permits in use, and asking for each call that has the limiter now
	seen atomic.Int64 // when it last admitted a call, unless its cell notes that
}

// touch notes that the limiter has admitted a call. A cell notes that by itself.
func (e *entry) touch() {
	if b, ok := e.Limiter.(*Bucket); !ok || b.word.Load() == busy {
		e.seen.Store(int64(now()))
	}
}

// bucket returns the bucket that the limiter is, or is around.
func (e *entry) bucket() *Bucket {
	if b, ok := As[*Bucket](e.Limiter); ok {
		return b
	}
	if q, ok := As[interface{ Bucket() *Bucket }](e.Limiter); ok {
		return q.Bucket()
	}
	return nil
}

// drop reports whether the limiter is to be dropped, at time t, if it has not been used for a
// while. A bucket that is not idle stays with the last limiter around it.
func (e *entry) drop(t, unused time.Duration) bool {
	pins := e.pins.Load()
	if pins > 0 {
		unused = forgotten
	}
	seen, b := e.seen.Load(), e.bucket()
	if own, ok := e.Limiter.(*Bucket); ok && own.unit != 0 { // it has a cell
		seen = max(seen, own.seen.Load())
	}
	// A subtraction could overflow: a bucket that was never used was last used at the
	// beginning of time.
	if i, ok := e.Limiter.(idler); !ok || pins >= asking || time.Duration(seen) > t-unused || !i.Idle() {
		return false
	}
	for b != nil {
		n := b.keys.Load()
		if n == 1 && !b.unmade() && !b.idle() {
			return false
		}
		if b.keys.CompareAndSwap(n, n-1) {
			break
		}
	}
	return true
}

// keyShard is a part of a [Keyed].
type keyShard[K comparable] struct {
	mu      sync.Mutex // protects entries, and every decision to drop one
	entries map[K]*entry
	_       [48]byte // a cache line of its own
}

// get returns the limiter of a key, pinned, or nil.
func (s *keyShard[K]) get(key K) *entry {
	s.mu.Lock()
	e := s.entries[key]
	if e != nil {
		e.pins.Add(asking)
	}
	s.mu.Unlock()
	return e
}

// sweepLocked looks at a few limiters, chosen by the order of a map, and drops those that have
// not been used for a while and are idle.
func (s *keyShard[K]) sweepLocked(most int, unused time.Duration, count *atomic.Int64) (looked int, dropped bool) {
	t := now()
	for key, e := range s.entries {
		if e.drop(t, unused) {
			delete(s.entries, key)
			count.Add(-1)
			dropped = true
		}
		if looked++; looked == most {
			break
		}
	}
	return looked, dropped
}
