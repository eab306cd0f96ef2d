package outbound

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// forgotten is how long a permit keeps its limiter from being dropped, if that is idle:
// longer than a call takes, and an end to what a forgotten Done costs.
const forgotten = 5 * time.Minute

// entry is a limiter of a [Keyed], and its pins. A bucket has room for those itself, so
// that an entry takes no memory.
type entry struct {
	Limiter               // nil: there is none
	pins    *atomic.Int32 // permits that are out
	seen    *atomic.Int64 // when it last admitted a call
}

// guest is a limiter that is not a bucket, with room for the pins.
type guest struct {
	Limiter
	pins atomic.Int32
	seen atomic.Int64
}

// entryOf returns the entry of a *Bucket or a *guest.
func entryOf(l Limiter) entry {
	switch l := l.(type) {
	case *Bucket:
		return entry{l, &l.pins, &l.seen}
	case *guest:
		return entry{l.Limiter, &l.pins, &l.seen}
	}
	return entry{}
}

// touch notes that the limiter has admitted a call. A cell notes that by itself.
func (e entry) touch() {
	if b, ok := e.Limiter.(*Bucket); !ok || b.word.Load() == busy {
		e.seen.Store(int64(now()))
	}
}

// dropping is added to the pins while somebody looks whether to drop a limiter, and stays
// if it was dropped. So of two that happen at the same time, a call that is admitted and
// then pins, and one that marks the pins and then looks whether the limiter is idle, one
// sees the other.
const dropping = math.MinInt32 / 2

// pin counts a permit, and reports whether the limiter is dropped, or about to be.
func (e entry) pin() (marked bool) { return e.pins.Add(1) < dropping/2 }

// mark marks the pins, and returns how many they are.
func (e entry) mark() int32 {
	for {
		n := e.pins.Load()
		if n < dropping/2 { // dropped under another key: New may share limiters
			return n - dropping
		}
		if e.pins.CompareAndSwap(n, n+dropping) {
			return n
		}
	}
}

// keep takes the mark away.
func (e entry) keep() {
	for {
		n := e.pins.Load()
		if n >= dropping/2 || e.pins.CompareAndSwap(n, n-dropping) {
			return
		}
	}
}

// drop reports whether the limiter is to be dropped, at time t, if it has not been used
// for a while. If not, it is left as it was.
func (e entry) drop(t, unused time.Duration) bool {
	if e.mark() > 0 {
		unused = forgotten
	}
	// A subtraction could overflow: a bucket that was never used was last used
	// at the beginning of time.
	if i, ok := e.Limiter.(idler); ok && time.Duration(e.seen.Load()) <= t-unused && i.Idle() {
		return true
	}
	e.keep()
	return false
}

// keyShard is a part of a [Keyed]. Its tables are changed under its lock and
// read without: a Go map would need the lock for every look, which costs more
// than all the rest of it. A reader beside a change may miss a key that is
// there, and then looks again under the lock.
//
// Most buckets bear the key that they are found under. Then that needs no
// entry, which saves memory and, among a million keys, waiting for it.
type keyShard[K comparable] struct {
	mu      sync.Mutex // protects changes of the tables, and every decision to drop
	buckets table[Bucket]
	others  table[keyed[K]]
	_       [24]byte // a cache line of its own
}

// keyed is a limiter, a *Bucket or a *guest, that does not bear its key. It never changes.
type keyed[K comparable] struct {
	key     K
	limiter Limiter
}

// find returns the limiter of a key, or none.
func (s *keyShard[K]) find(hash uint64, key K) entry {
	if name, ok := any(key).(string); ok {
		slots := s.buckets.load()
		for i := home(hash, slots); len(slots) > 0; i++ {
			slot := &slots[i&(len(slots)-1)]
			b := slot.value.Load()
			if b == nil { // some slots are always free
				break
			}
			if slot.hash.Load() == hash && b.key == name {
				return entry{b, &b.pins, &b.seen}
			}
		}
	}
	slots := s.others.load()
	for i := home(hash, slots); len(slots) > 0; i++ {
		slot := &slots[i&(len(slots)-1)]
		l := slot.value.Load()
		if l == nil {
			break
		}
		if slot.hash.Load() == hash && l.key == key {
			return entryOf(l.limiter)
		}
	}
	return entry{}
}

// get returns the limiter of a key, and misses none.
func (s *keyShard[K]) get(hash uint64, key K) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(hash, key)
}

// all yields the keys and their limiters, without the lock, until yield returns false.
func (s *keyShard[K]) all(yield func(K, Limiter) bool) bool {
	for b := range s.buckets.all() {
		if key, ok := any(b.key).(K); ok && !yield(key, b) {
			return false
		}
	}
	for l := range s.others.all() {
		if !yield(l.key, entryOf(l.limiter).Limiter) {
			return false
		}
	}
	return true
}

// insertLocked adds a limiter that is not there.
func (s *keyShard[K]) insertLocked(hash uint64, key K, l Limiter) {
	if b, ok := l.(*Bucket); ok && any(b.key) == any(key) {
		s.buckets.insert(hash, b)
	} else {
		s.others.insert(hash, &keyed[K]{key, l})
	}
}

// sweepLocked looks at a few limiters, which ones is left to chance, and drops those
// that have not been used for a while and that nobody would miss.
func (s *keyShard[K]) sweepLocked(most int, unused time.Duration, count *atomic.Int64) (looked int, dropped bool) {
	before := s.buckets.n + s.others.n
	t := now()
	looked = s.buckets.sweep(most, count, func(b *Bucket) bool { return entryOf(b).drop(t, unused) })
	looked += s.others.sweep(most-looked, count, func(l *keyed[K]) bool { return entryOf(l.limiter).drop(t, unused) })
	return looked, s.buckets.n+s.others.n < before
}
