package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
)

// keyNames and keyOrder are the same for all contenders, and made before any
// measurement: a table of keys, as long as the longest asked for, and a random
// walk.
var (
	keyNames []string
	keyOrder = sync.OnceValue(func() []uint32 {
		random := rand.New(rand.NewPCG(1, 2))
		order := make([]uint32, 1<<20)
		for i := range order {
			order[i] = random.Uint32()
		}
		return order
	})
)

// keyTable returns the first keys of the table.
func keyTable(keys int) []string {
	for len(keyNames) < keys {
		keyNames = append(keyNames, fmt.Sprintf("tenant-%07d", len(keyNames)))
	}
	return keyNames[:keys]
}

// pick chooses a name by a random number: it multiplies and shifts the number
// to an index.
func pick(names []string, random uint32) string {
	return names[uint64(random)*uint64(len(names))>>32]
}

// keyed measures an admitted decision for keys in random order, after each key
// has been seen once. It also measures the memory of a key.
func keyed(o options, keys, goroutines int) scenario {
	column := fmt.Sprintf("%d keys", keys)
	if keys == 1 {
		column = "1 key"
	}
	if goroutines > 1 {
		column += fmt.Sprintf(", %d goroutines", goroutines)
	}
	s := scenario{
		section: "A decision by key, ns",
		name:    column,
		metrics: []metric{{name: column, digits: 0, ratio: true}},
		offered: func(c contender) bool { return c.keyed != nil },
	}
	weigh := keys > 1000 // with fewer keys the fixed cost hides theirs
	if weigh {
		s.metrics = append(s.metrics, metric{name: "bytes per key", digits: 0, ratio: true, size: true})
	}
	s.measure = func(c contender) (sample, error) {
		names, order := keyTable(keys), keyOrder()
		before := liveHeap()
		take, stop, err := c.keyed()
		if err != nil {
			return sample{}, err
		}
		defer stop()
		for i, name := range names {
			if !take(name) {
				return sample{}, fmt.Errorf("key %d is refused", i)
			}
		}
		values := make([]float64, 1, 2)
		if weigh {
			values = append(values, float64(int64(liveHeap())-int64(before))/float64(keys))
		}
		var outcome tally
		var allocated allocated
		values[0], allocated = timed(o.Benchtime, manyTurns, func(n int) {
			fan(goroutines, n, func(goroutine, n int) {
				wrong, at := 0, goroutine*len(order)/goroutines
				for i := range n {
					if !take(pick(names, order[(at+i)&(len(order)-1)])) {
						wrong++
					}
				}
				outcome.add(n, wrong)
			})
		})
		wrong, err := outcome.share()
		return sample{values, wrong, &allocated}, err
	}
	return s
}

// liveHeap returns the bytes on the heap after two collections.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
