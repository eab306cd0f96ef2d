package outbound

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// A table is checked against a map, with hashes that collide a lot.
func TestTableFindsWhatWasInsertedAndNothingThatWasRemoved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s keyShard[int]
	var count atomic.Int64
	hash := func(key int) uint64 { return uint64(key%37) << 8 }
	want := map[int]*guest{}
	for range 20_000 {
		key := r.IntN(200)
		if _, known := want[key]; !known && r.IntN(2) == 0 {
			want[key] = &guest{Limiter: Unlimited{}}
			s.insertLocked(hash(key), key, want[key])
			count.Add(1)
		}
		if r.IntN(8) == 0 {
			s.others.sweep(1+r.IntN(5), &count, func(e *keyed[int]) bool {
				if e.limiter != Limiter(want[e.key]) {
					t.Fatalf("swept key %d, which was not there", e.key)
				}
				if e.key%2 == 0 || r.IntN(3) > 0 {
					return false
				}
				delete(want, e.key)
				return true
			})
		}
		if s.others.n != len(want) || int(count.Load()) != len(want) {
			t.Fatalf("%d values, counted as %d, want %d", s.others.n, count.Load(), len(want))
		}
		probe := r.IntN(200)
		e := s.find(hash(probe), probe)
		if w := want[probe]; w == nil && e.Limiter != nil || w != nil && e.pins != &w.pins {
			t.Fatalf("key %d: found %v, want %v", probe, e, w)
		}
	}
}
