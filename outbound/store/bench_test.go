package store

import (
	"sync"
	"testing"
	"time"
)

// byHand is what people write by hand: counters that leak, behind a mutex.
type byHand struct {
	mu    sync.Mutex
	at    time.Time
	level [3]float64
}

func (f *byHand) take(limits []Limit) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	sec := now.Sub(f.at).Seconds()
	f.at = now
	for i := range limits {
		if f.level[i] = max(0, f.level[i]-limits[i].Rate*sec); f.level[i]+1 > limits[i].Capacity {
			return false
		}
	}
	for i := range limits {
		f.level[i]++
	}
	return true
}

// book is the arithmetic of one call of a bucket in memory.
func book(mu *sync.Mutex, s *State, limits []Limit, n *Units, c *Charge) bool {
	mu.Lock()
	defer mu.Unlock()
	s.Advance(limits, time.Since(start))
	_, _, ok := s.Fill(limits, n, 0, c)
	return ok
}

func BenchmarkBook(b *testing.B) {
	three := numbered([]Limit{{Capacity: 1e9, Rate: 1e9}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}})
	b.Run("three counters and a mutex", func(b *testing.B) {
		f := byHand{at: time.Now()}
		for b.Loop() {
			f.take(three)
		}
	})
	for name, limits := range map[string][]Limit{
		"three leaky limits":         three,
		"three leaky limits/refused": numbered([]Limit{{Capacity: 1, Rate: 1e-6}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}}),
		"a window of 1000":           {{Kind: Window, Capacity: 1000, Rate: 1000 / 0.064, Window: 64 * time.Millisecond}},
		"a window of 5000/refused":   {{Kind: Window, Capacity: 5000, Rate: 5000. / 3600, Window: time.Hour}},
	} {
		b.Run(name, func(b *testing.B) {
			var mu sync.Mutex
			var c Charge
			s := New(time.Since(start), len(limits))
			n := Units{1, 1, 1}
			for b.Loop() {
				book(&mu, &s, limits, &n, &c)
			}
		})
		b.Run(name+"/Update", func(b *testing.B) {
			var k Key
			op := Op{Limits: limits, Action: Book, Costs: []Units{{1, 1, 1}}, Into: make([]Charge, 0, 1)}
			for b.Loop() {
				k.Update(&op)
			}
		})
	}
}
