package outbound

import (
	"iter"
	"math/rand/v2"
	"sync/atomic"
)

// table is a hash table with linear probing, at most three quarters full. One goroutine at a
// time changes it; a reader beside a change may miss a value that is there.
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

// all returns the values. Beside a change it may miss one, or have one twice.
func (t *table[V]) all() iter.Seq[*V] {
	return func(yield func(*V) bool) {
		slots := t.load()
		for i := range slots {
			if v := slots[i].value.Load(); v != nil && !yield(v) {
				return
			}
		}
	}
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
