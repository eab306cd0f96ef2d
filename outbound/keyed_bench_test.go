package outbound

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
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
