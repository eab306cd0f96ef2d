package outbound

import (
	"sync/atomic"
	"testing"
	"time"
)

// The floor is the least that any limiter needs: one reading of the monotonic
// clock and one compare-and-swap.
func BenchmarkFloor(b *testing.B) {
	var word atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t := int64(time.Since(start))
			for {
				w := word.Load()
				if word.CompareAndSwap(w, max(w, t)+1) {
					break
				}
			}
		}
	})
}

func BenchmarkFloor1(b *testing.B) {
	var word atomic.Int64
	for b.Loop() {
		t := int64(time.Since(start))
		for {
			w := word.Load()
			if word.CompareAndSwap(w, max(w, t)+1) {
				break
			}
		}
	}
}

func BenchmarkAdmitted1(b *testing.B) {
	x := Must(NewBucket("bench", Limit{Capacity: 1e9, LeakRate: 1e9}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Acquire(ctx, Cost{1}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRefused1(b *testing.B) {
	x := Must(NewBucket("bench", PerHour(1)))
	x.Acquire(ctx, Cost{1})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Acquire(ctx, Cost{1}); err == nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdmittedTwoLimits(b *testing.B) {
	x := Must(NewBucket("bench", Limit{Capacity: 1e9, LeakRate: 1e9}, Limit{Capacity: 1e9, LeakRate: 1e9, Name: "b"}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Acquire(ctx, Cost{1}); err != nil {
			b.Fatal(err)
		}
	}
}
