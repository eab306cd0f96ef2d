package queue

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const crowd = 100_000

// gather starts n calls and returns when all of them wait.
func gather(b *testing.B, q *Queue, ctx context.Context, n int, then func(error)) *sync.WaitGroup {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := q.Acquire(ctx, outbound.Cost{1})
			if then != nil {
				then(err)
			}
		})
	}
	for q.Len() < n {
		time.Sleep(time.Millisecond)
	}
	return &wg
}

// 100 000 waiters: bytes each, goroutine included, and the time to cancel them.
func BenchmarkWaiters(b *testing.B) {
	var bytes, cancelled float64
	for b.Loop() {
		q := New(bucket(b, outbound.Limit{Capacity: 1, LeakRate: 0.001}), Config{MaxLen: crowd})
		q.Acquire(context.Background(), outbound.Cost{1})
		ctx, cancel := context.WithCancel(context.Background())
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		wg := gather(b, q, ctx, crowd, nil)
		runtime.GC()
		runtime.ReadMemStats(&after)
		bytes += float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse) / crowd
		start := time.Now()
		cancel()
		wg.Wait()
		cancelled += time.Since(start).Seconds()
	}
	b.ReportMetric(bytes/float64(b.N), "B/waiter")
	b.ReportMetric(cancelled/float64(b.N)*1000, "ms/cancel-all")
}

// 100 000 waiters let go at 100 000 per second: the ideal is one second.
func BenchmarkLetGo(b *testing.B) {
	for b.Loop() {
		bkt := bucket(b, outbound.Limit{Capacity: 1, LeakRate: 100_000})
		q := New(bkt, Config{MaxLen: crowd})
		bkt.Hold(context.Background(), time.Second)
		var went atomic.Int64
		gather(b, q, context.Background(), crowd, func(error) { went.Add(1) }).Wait()
		s, _ := bkt.State(context.Background())
		_ = s
		b.ReportMetric(float64(q.Stats().Late), "late")
	}
}
