package outbound

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// goroutines runs do from n of them, as evenly as b.N allows.
func goroutines(b *testing.B, n int, do func()) {
	b.ReportAllocs()
	if n == 1 {
		for b.Loop() {
			do()
		}
		return
	}
	b.SetParallelism(max(1, n/runtime.GOMAXPROCS(0)))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			do()
		}
	})
}

// The floor is the least that any limiter needs: one reading of the monotonic
// clock and one compare-and-swap. Judge the others by it, in the same run:
//
//	go test -run - -bench Decision -count 5 ./outbound
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{1, 2, 64} {
		b.Run(fmt.Sprintf("floor/%d", n), func(b *testing.B) {
			var word atomic.Int64
			goroutines(b, n, func() {
				t := int64(time.Since(start))
				for {
					if w := word.Load(); word.CompareAndSwap(w, max(w, t)+1) {
						return
					}
				}
			})
		})
		admitted := func(limits ...Limit) func(b *testing.B) {
			return func(b *testing.B) {
				x := Must(NewBucket("bench", limits...))
				goroutines(b, n, func() {
					if _, err := x.Acquire(ctx, Cost{1}); err != nil {
						b.Error(err)
					}
				})
			}
		}
		wide := Limit{Capacity: 1e9, LeakRate: 1e9}
		b.Run(fmt.Sprintf("admitted/%d", n), admitted(wide))
		b.Run(fmt.Sprintf("admitted-by-two-limits/%d", n), admitted(wide, wide.Of(0, "second")))
		b.Run(fmt.Sprintf("refused/%d", n), func(b *testing.B) {
			x := Must(NewBucket("bench", PerHour(1)))
			if _, err := x.Acquire(ctx, Cost{1}); err != nil {
				b.Fatal(err)
			}
			goroutines(b, n, func() {
				if _, err := x.Acquire(ctx, Cost{1}); err == nil {
					b.Error("admitted")
				}
			})
		})
	}
}

// The time of Explain in memory.
func BenchmarkExplain(b *testing.B) {
	for name, limits := range map[string][]Limit{"one": {PerSecond(10)}, "two": {PerSecond(10), Window(5000, time.Hour)}} {
		b.Run(name, func(b *testing.B) {
			bucket := Must(NewBucket("bench", limits...))
			for range 3 {
				_, _ = bucket.Acquire(ctx, Cost{1})
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bucket.Explain(ctx, Cost{1}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
