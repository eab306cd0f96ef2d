package outbound

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func benchKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%07d", i)
	}
	return keys
}

// order is a way through n keys that no cache foresees.
func order(n int) []int32 {
	o := make([]int32, 1<<20)
	for i := range o {
		o[i] = int32(rand.IntN(n))
	}
	return o
}

func fast(key string) (Limiter, error) { return NewBucket(key, Limit{Capacity: 1e9, LeakRate: 1e9}) }

// BenchmarkKeyed is a decision for one of so many keys, its Done included.
func BenchmarkKeyed(b *testing.B) {
	for _, n := range []int{1, 1_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			keys, at := benchKeys(n), order(n)
			k := &Keyed[string]{New: fast, Max: n}
			for _, key := range keys {
				if _, err := k.For(key).Acquire(ctx, Cost{1}); err != nil {
					b.Fatal(err)
				}
			}
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p, err := k.Acquire(ctx, keys[at[i&(1<<20-1)]], Cost{1})
				if err != nil {
					b.Fatal(err)
				}
				p.Done()
				i++
			}
		})
	}
}

func BenchmarkKeyedParallel(b *testing.B) {
	keys := benchKeys(1000)
	k := &Keyed[string]{New: fast}
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		i := rand.IntN(1000)
		for pb.Next() {
			p, err := k.Acquire(ctx, keys[i%1000], Cost{1})
			if err != nil {
				b.Error(err)
				return
			}
			p.Done()
			i++
		}
	})
}

// BenchmarkKeyedFloor is the least that it takes to find a word under a key and change it:
// a concurrent map, the clock and a compare-and-swap.
func BenchmarkKeyedFloor(b *testing.B) {
	for _, n := range []int{1, 1_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			keys, at := benchKeys(n), order(n)
			var m sync.Map
			for _, key := range keys {
				m.Store(key, new(atomic.Int64))
			}
			runtime.GC()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				v, _ := m.Load(keys[at[i&(1<<20-1)]])
				word := v.(*atomic.Int64)
				t := int64(time.Since(start))
				for {
					w := word.Load()
					if word.CompareAndSwap(w, max(w, t)+1) {
						break
					}
				}
				i++
			}
		})
	}
}

func perTenant(key string) (Limiter, error) { return NewBucket(key, PerSecond(10)) }

// keyedBytes returns the memory that a Keyed takes for each of n keys, the
// bytes of the keys themselves excepted.
func keyedBytes(n int) float64 {
	keys := benchKeys(n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	k := &Keyed[string]{New: perTenant, Max: n}
	for _, key := range keys {
		if p, err := k.For(key).Acquire(ctx, Cost{1}); err == nil {
			p.Done()
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	bytes := float64(after.HeapAlloc-before.HeapAlloc) / float64(k.Len())
	runtime.KeepAlive(keys)
	return bytes
}

func BenchmarkKeyedBytes(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(keyedBytes(1_000_000), "B/key")
	}
}

// BenchmarkKeyedStrangers is a new key for a full Keyed, in which all others
// are in use, or idle.
func BenchmarkKeyedStrangers(b *testing.B) {
	for name, limiter := range map[string]func(uint64) (Limiter, error){
		"busy": func(uint64) (Limiter, error) { return NewBucket("", PerHour(1)) },
		"idle": unlimited[uint64],
	} {
		b.Run(name, func(b *testing.B) {
			k := &Keyed[uint64]{New: limiter}
			for range 100_000 {
				p, _ := k.Acquire(ctx, rand.Uint64(), Cost{1})
				p.Done()
			}
			b.ReportAllocs()
			for b.Loop() {
				p, _ := k.Acquire(ctx, rand.Uint64(), Cost{1})
				p.Done()
			}
		})
	}
}
