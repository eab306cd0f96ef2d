package queue

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const crowd = 100_000

// gather starts n calls and returns when all of them wait or have left.
func gather(b *testing.B, q *Queue, ctx context.Context, n int) *sync.WaitGroup {
	var wg sync.WaitGroup
	before := q.Stats().Admitted
	for range n {
		wg.Go(func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) })
	}
	for s := q.Stats(); s.Waiting+int(s.Admitted-before) < n; s = q.Stats() {
		time.Sleep(time.Millisecond)
	}
	return &wg
}

// BenchmarkWaiters measures 100 000 calls that wait: bytes each, goroutine included, and the time to
// cancel all.
func BenchmarkWaiters(b *testing.B) {
	var bytes, cancelled float64
	for b.Loop() {
		q := New(bucket(b, outbound.Limit{Capacity: 1, LeakRate: 0.001}), Config{MaxLen: crowd, MaxWait: math.MaxInt64})
		q.Acquire(context.Background(), outbound.Cost{1})
		ctx, cancel := context.WithCancel(context.Background())
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		wg := gather(b, q, ctx, crowd)
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

// BenchmarkPool measures a call of a pool of five members that are all free.
func BenchmarkPool(b *testing.B) {
	p := new(outbound.Pool)
	for i := range 5 {
		p.Members = append(p.Members, New(outbound.Must(outbound.NewBucket(fmt.Sprint(i), outbound.Limit{Capacity: 1e12, LeakRate: 1e12})), Config{}))
	}
	b.ReportAllocs()
	for b.Loop() {
		permit, err := p.Acquire(bg, one)
		if err != nil {
			b.Fatal(err)
		}
		permit.Done()
	}
}
