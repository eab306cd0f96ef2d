package queue

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

const crowd = 100_000

// gather starts n calls and returns when all of them wait or have left.
func gather(b *testing.B, q *Queue, ctx context.Context, n int, then func(error)) *sync.WaitGroup {
	var wg sync.WaitGroup
	before := q.Stats().Admitted
	for range n {
		wg.Go(func() {
			_, err := q.Acquire(ctx, outbound.Cost{1})
			if then != nil {
				then(err)
			}
		})
	}
	for s := q.Stats(); s.Waiting+int(s.Admitted-before) < n; s = q.Stats() {
		time.Sleep(time.Millisecond)
	}
	return &wg
}

// InFlight measures a call that comes while nobody waits, also as a multiple of the bucket's
// own decision.
func BenchmarkAtOnce(b *testing.B) {
	const round = 10_000
	paced := bucket(b, outbound.Limit{Capacity: 1e9, LeakRate: 1e9})
	q := New(paced, Config{})
	took := func(l outbound.Limiter) time.Duration {
		begin := time.Now()
		for range round {
			p, err := l.Acquire(context.Background(), outbound.Cost{1})
			if err != nil {
				b.Fatal(err)
			}
			p.Done()
		}
		return time.Since(begin)
	}
	var alone, queued time.Duration
	for b.Loop() {
		alone, queued = alone+took(paced), queued+took(q)
	}
	b.ReportMetric(float64(queued)/float64(b.N*round), "ns/call")
	b.ReportMetric(float64(queued)/float64(alone), "x-bucket")
}

// Waiters measures 100 000 calls that wait: bytes each, goroutine included, and the time to
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

// LetGo lets 100 000 calls go at 100 000 per second, while they come and once all have come. The
// ideal is one second.
func BenchmarkLetGo(b *testing.B) {
	for name, hold := range map[string]time.Duration{"while they come": 0, "once all have come": 2 * time.Second} {
		b.Run(name, func(b *testing.B) { letGo(b, hold) })
	}
}

func letGo(b *testing.B, hold time.Duration) {
	const rate = 100_000
	var took, late, over float64
	for b.Loop() {
		paced := bucket(b, outbound.Limit{Capacity: 1, LeakRate: rate})
		q := New(paced, Config{MaxLen: crowd})
		// The calls gather during a hold, and drip afterwards.
		if err := paced.Hold(context.Background(), hold); err != nil && hold > 0 {
			b.Fatal(err)
		}
		var h outboundtest.History
		gather(b, q, context.Background(), crowd, func(error) { h.Add(time.Now(), 1) }).Wait()
		// The history notes a call after Acquire has returned, so this includes what the
		// scheduler does to 100 000 goroutines.
		var excess *outboundtest.Excess
		if err := h.Check(1, rate, 0); errors.As(err, &excess) {
			over = max(over, excess.Over/rate*1000)
		}
		took += h.Total().Span().Seconds()
		late += float64(q.Stats().Late)
	}
	b.ReportMetric(took/float64(b.N)/(float64(crowd-1)/rate), "x-ideal")
	b.ReportMetric(late/float64(b.N), "late")
	b.ReportMetric(over, "ms-over-limit")
}

// Inversions counts the neighbours in a line of 64 that leave in another order than they
// came. It looks after Acquire has returned, when the scheduler may have swapped two calls
// that were due at one instant.
func BenchmarkInversions(b *testing.B) {
	for _, rate := range []float64{1000, 20_000, 200_000} {
		b.Run(strconv.Itoa(int(rate)), func(b *testing.B) {
			inversions := 0
			for b.Loop() {
				paced := bucket(b, outbound.Limit{Capacity: 1, LeakRate: rate})
				q := New(paced, Config{})
				paced.Hold(context.Background(), 50*time.Millisecond)
				var mu sync.Mutex
				last := -1
				var wg sync.WaitGroup
				for i := range 64 {
					wg.Go(func() {
						q.Acquire(context.Background(), outbound.Cost{1})
						mu.Lock()
						defer mu.Unlock()
						if i < last {
							inversions++
						}
						last = i
					})
					for q.Len() <= i {
						runtime.Gosched()
					}
				}
				wg.Wait()
			}
			b.ReportMetric(float64(inversions)/float64(b.N), "seen-swapped/round")
		})
	}
}
