package outbound

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

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

// table is a hash table with linear probing, at most three quarters full.
type table[V any] struct {
	slots atomic.Pointer[[]slotOf[V]] // as many as a power of 2, or nil
	n     int                         // values
}

type slotOf[V any] struct {
	hash  atomic.Uint64 // of the key: it saves looking at most other keys
	value atomic.Pointer[V]
}

func (t *table[V]) load() []slotOf[V] {
	if slots := t.slots.Load(); slots != nil {
		return *slots
	}
	return nil
}

// home is the index of the slot where the search for a hash begins. The bits
// below have chosen the shard.
func home[V any](hash uint64, slots []slotOf[V]) int { return int(hash>>8) & (len(slots) - 1) }

func (t *table[V]) insert(hash uint64, v *V) {
	slots := t.load()
	if 4*(t.n+1) > 3*len(slots) {
		more := make([]slotOf[V], max(8, 2*len(slots)))
		for i := range slots {
			if v := slots[i].value.Load(); v != nil {
				place(more, slots[i].hash.Load(), v)
			}
		}
		slots = more
		t.slots.Store(&slots) // readers of the old one see what was there
	}
	t.n++
	place(slots, hash, v)
}

func place[V any](slots []slotOf[V], hash uint64, v *V) {
	i := home(hash, slots)
	for slots[i].value.Load() != nil {
		i = (i + 1) & (len(slots) - 1)
	}
	slots[i].hash.Store(hash)
	slots[i].value.Store(v)
}

// remove frees slot i, and moves those up that were pushed behind it.
func (t *table[V]) remove(slots []slotOf[V], i int) {
	t.n--
	mask := len(slots) - 1
	for j := (i + 1) & mask; ; j = (j + 1) & mask {
		v, hash := slots[j].value.Load(), slots[j].hash.Load()
		if v == nil {
			slots[i].value.Store(nil)
			return
		}
		if (j-home(hash, slots))&mask >= (j-i)&mask {
			slots[i].hash.Store(hash)
			slots[i].value.Store(v)
			i = j
		}
	}
}

// sweep removes some for which drop is true, and returns how many it has
// looked at.
func (t *table[V]) sweep(most int, count *atomic.Int64, drop func(*V) bool) (looked int) {
	slots := t.load()
	mask := len(slots) - 1
	i := int(rand.Uint32())
	for range min(len(slots), 8*most) {
		v := slots[i&mask].value.Load()
		if v == nil {
			i++
			continue
		}
		if drop(v) {
			t.remove(slots, i&mask) // and look at what has moved there
			count.Add(-1)
		} else {
			i++
		}
		if looked++; looked == most {
			break
		}
	}
	return looked
}
