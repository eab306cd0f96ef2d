package store

import (
	"slices"
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

// clockOf is the time of a benchmark. It reads the process's clock, because that costs a call of
// each contender as much, and adds step for each call, so that a window is always as full.
type clockOf struct{ at, step time.Duration }

func (c *clockOf) now() time.Duration {
	t := time.Since(start)
	if c.step == 0 {
		return t
	}
	c.at += c.step
	return c.at
}

// timesLog is an exact log of the calls of a window, behind a mutex.
type timesLog struct {
	mu     sync.Mutex
	clock  clockOf
	times  []time.Duration
	n      int
	window time.Duration
}

func (l *timesLog) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.now()
	gone := 0
	for gone < len(l.times) && l.times[gone] <= now-l.window {
		gone++
	}
	if l.times = l.times[gone:]; len(l.times) >= l.n {
		return false
	}
	l.times = append(l.times, now)
	return true
}

// inMemory is a key as a bucket in memory has it.
type inMemory struct {
	mu    sync.Mutex
	clock clockOf
	Stored
}

func (k *inMemory) take(n *Units, c *Charge) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Take(k.Number, n, nil, 0, k.clock.now(), 0, func() *Charge { return c }).Booked
}

func windowOf(n float64, of time.Duration) Limit {
	return Limit{Kind: Window, Capacity: n, Rate: n / of.Seconds(), Window: of}
}

// BenchmarkTake measures a call in place, in turns with what does the same by hand: medians of a
// thousand calls. The bars are 2.5 times the floor of the row, and 5 times for two windows.
//
//	go test ./outbound/store -run '^$' -bench Take -benchtime 1000000x
func BenchmarkTake(b *testing.B) {
	const w = 64 * time.Millisecond
	three := numbered([]Limit{{Capacity: 1e9, Rate: 1e9}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}})
	full := numbered([]Limit{{Capacity: 1, Rate: 1e-6}, {Capacity: 1e9, Rate: 1e8}, {Capacity: 1e9, Rate: 1e7}})
	for _, row := range []struct {
		name   string
		limits []Limit
		step   time.Duration
		log    int // the calls of an exact log
	}{
		{"three leaky limits/admitted", three, 0, 0},
		{"three leaky limits/refused", full, 0, 0},
		{"window of 1000/admitted", []Limit{windowOf(1000, w)}, w / 980, 1000},
		{"window of 1000/refused", []Limit{windowOf(1000, w)}, 1, 1000},
		{"window of 5000/admitted", []Limit{windowOf(5000, w)}, w / 4900, 5000},
		{"window of 5000/refused", []Limit{windowOf(5000, w)}, 1, 5000},
		{"two windows/admitted", numbered([]Limit{windowOf(1000, w), windowOf(5000, 5*w)}), w / 980, 1000},
		{"two windows/refused", numbered([]Limit{windowOf(1000, w), windowOf(5000, 5*w)}), 1, 1000},
	} {
		b.Run(row.name, func(b *testing.B) {
			k := &inMemory{clock: clockOf{step: row.step}}
			(&Op{Limits: row.limits}).ApplyAt(&k.Stored, k.clock.now(), 0)
			n, c := Units{1, 1, 1}, new(Charge)
			hand := &counters{at: time.Now()}
			floor := func() bool { return hand.take(row.limits) }
			if row.log > 0 {
				floor = (&timesLog{clock: clockOf{step: row.step}, n: row.log, window: w}).take
			}
			for range 10_000 {
				k.take(&n, c)
				floor()
			}
			var took, by []time.Duration
			for range max(1, b.N/1000) {
				began := time.Now()
				for range 1000 {
					k.take(&n, c)
				}
				between := time.Now()
				for range 1000 {
					floor()
				}
				took, by = append(took, between.Sub(began)), append(by, time.Since(between))
			}
			slices.Sort(took)
			slices.Sort(by)
			m, f := float64(took[len(took)/2]), float64(by[len(by)/2])
			b.ReportMetric(m/1000, "ns")
			b.ReportMetric(f/1000, "floor-ns")
			b.ReportMetric(m/f, "x/floor")
			b.ReportMetric(0, "ns/op")
		})
	}
	b.Run("Update", func(b *testing.B) {
		m := NewMemory()
		op := Op{Limits: three, Action: Book, Costs: []Units{{1, 1, 1}}, Into: make([]Charge, 0, 1)}
		for b.Loop() {
			_, _ = m.Update(b.Context(), "", &op)
		}
	})
}
