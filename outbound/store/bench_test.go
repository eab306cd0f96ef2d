package store

import (
	"sync"
	"testing"
	"time"
)

// counters is what people write by hand: counters that leak, behind a mutex.
type counters struct {
	mu    sync.Mutex
	at    time.Time
	level [3]float64
}

func (f *counters) take(limits []Limit) bool {
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

// ringLog is a ring of the times of the last calls of a window, behind a mutex.
type ringLog struct {
	mu    sync.Mutex
	times []time.Duration
	next  int
	len   time.Duration
}

func (f *ringLog) take() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Since(start)
	if was := f.times[f.next]; was > 0 && now-was < f.len {
		return false
	}
	f.times[f.next] = now
	if f.next++; f.next == len(f.times) {
		f.next = 0
	}
	return true
}

// inMemory is a key as a bucket in memory has it.
type inMemory struct {
	mu sync.Mutex
	Stored
}

func (k *inMemory) take(n *Units, c *Charge) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Take(k.Number, n, nil, 0, time.Since(start), 0, c).Booked
}

func newInMemory(limits []Limit) *inMemory {
	k := new(inMemory)
	(&Op{Limits: limits}).ApplyAt(&k.Stored, time.Since(start), 0)
	return k
}

func windowOf(n float64, of time.Duration) Limit {
	return Limit{Kind: Window, Capacity: n, Rate: n / of.Seconds(), Window: of}
}

// BenchmarkTake measures a call in place beside what does the same by hand. The bars are 2.5 times
// the floor of the same row, and 5 times the log's for two windows.
//
//	go test ./outbound/store -run '^$' -bench Take -count 5
func BenchmarkTake(b *testing.B) {
	three := numbered([]Limit{{Capacity: 1e9, Rate: 1e9}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}})
	full := numbered([]Limit{{Capacity: 1, Rate: 1e-6}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}})
	fills := func(f *ringLog) { // a log that stays full, as a window that refuses is
		for f.take() {
		}
	}
	for _, row := range []struct {
		name   string
		limits []Limit
		floor  func() func() bool
	}{
		{"three leaky limits/admitted", three, func() func() bool {
			f := &counters{at: time.Now()}
			return func() bool { return f.take(three) }
		}},
		{"three leaky limits/refused", full, func() func() bool {
			f := &counters{at: time.Now()}
			return func() bool { return f.take(full) }
		}},
		{"window of 1000/admitted", []Limit{windowOf(1000, 64*time.Microsecond)}, func() func() bool {
			return (&ringLog{times: make([]time.Duration, 1000), len: 64 * time.Microsecond}).take
		}},
		{"window of 1000/refused", []Limit{windowOf(1000, time.Hour)}, func() func() bool {
			f := &ringLog{times: make([]time.Duration, 1000), len: time.Hour}
			fills(f)
			return f.take
		}},
		{"window of 5000/admitted", []Limit{windowOf(5000, 320*time.Microsecond)}, func() func() bool {
			return (&ringLog{times: make([]time.Duration, 5000), len: 320 * time.Microsecond}).take
		}},
		{"window of 5000/refused", []Limit{windowOf(5000, time.Hour)}, func() func() bool {
			f := &ringLog{times: make([]time.Duration, 5000), len: time.Hour}
			fills(f)
			return f.take
		}},
		{"two windows/admitted", numbered([]Limit{windowOf(1000, 64*time.Microsecond), windowOf(5000, 320*time.Microsecond)}), func() func() bool {
			return (&ringLog{times: make([]time.Duration, 1000), len: 64 * time.Microsecond}).take
		}},
	} {
		b.Run(row.name, func(b *testing.B) {
			k, floor := newInMemory(row.limits), row.floor()
			n, c := Units{1, 1, 1}, new(Charge)
			for range 5000 {
				k.take(&n, c)
			}
			measure := func(f func()) time.Duration {
				began := time.Now()
				for range b.N {
					f()
				}
				return time.Since(began)
			}
			b.ResetTimer()
			took := measure(func() { k.take(&n, c) })
			b.StopTimer()
			b.ReportMetric(float64(took)/float64(measure(func() { floor() })), "x/floor")
		})
	}
	b.Run("Update", func(b *testing.B) {
		var k Key
		op := Op{Limits: three, Action: Book, Costs: []Units{{1, 1, 1}}, Into: make([]Charge, 0, 1)}
		for b.Loop() {
			k.Update(&op)
		}
	})
}
