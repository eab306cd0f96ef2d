package outbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Ten workers, each with a bucket of its own for its tenth of the quota, begin together,
// and so are refused together but for one.
func TestWorkersThatShareNoBucketDoNotComeBackInStep(t *testing.T) {
	const workers, length, spacing = 10, 10 * time.Minute, 5 * time.Millisecond
	used := func(random func(seed, worker uint64) func() float64, seed uint64) float64 {
		taken := 0
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, length)
			defer cancel()
			var mu sync.Mutex
			var last time.Time
			api := func() bool { // it takes one call in 5 ms
				mu.Lock()
				defer mu.Unlock()
				if time.Since(last) < spacing {
					return false
				}
				taken++
				last = time.Now()
				return true
			}
			var all sync.WaitGroup
			for w := range uint64(workers) {
				b := Must(NewBucket("worker", PerSecond(1)))
				b.slowPath().random = random(seed, w)
				all.Go(func() {
					for ctx.Err() == nil {
						p, err := b.Acquire(ctx, Cost{1})
						if full, ok := errors.AsType[*ThrottledError](err); ok {
							time.Sleep(full.RetryAfter)
							continue
						} else if err != nil {
							return
						}
						time.Sleep(20 * time.Millisecond)
						if !api() {
							p.Refused(0)
						}
						p.Done()
					}
				})
			}
			all.Wait()
		})
		return float64(taken) / (workers * length.Seconds() / 1.01)
	}
	seeded := func(seed, worker uint64) func() float64 { return rand.New(rand.NewPCG(seed, worker)).Float64 }
	never := func(uint64, uint64) func() float64 { return func() float64 { return 0 } }
	seeds := 10.
	if raced {
		seeds = 3
	}
	var with, without float64
	for seed := range uint64(seeds) {
		with += used(seeded, seed) / seeds
		without += used(never, seed) / seeds
	}
	t.Logf("%.2f of the quota used, %.2f in step", with, without)
	if with < 0.85 || without > 0.75 {
		t.Errorf("%.2f of the quota used, want 0.85; in step it is %.2f", with, without)
	}
}

func TestADoubledHoldOfABucketThatNobodySharesIsLongerByChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := func() float64 { return 0.5 }
		own := Must(NewBucket("own", Limit{Capacity: 10, LeakRate: 10}))
		shared := Must(NewSharedBucket(leak.NewMemory(), "shared", Limit{Capacity: 10, LeakRate: 10}))
		own.slowPath().random, shared.slowPath().random = half, half
		refuse := func(b *Bucket, asked, atMost, want time.Duration) {
			t.Helper()
			s, err := b.State(ctx)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(s.HeldFor + time.Second)
			p := admit(t, b, 1)
			p.Answered(Answer{Kind: AnswerRefused, Wait: asked, MaxWait: atMost})
			p.Done()
			if s, err := b.State(ctx); err != nil || s.HeldFor != want {
				t.Errorf("%s: held for %v (%v), want %v", b.Key(), s.HeldFor, err, want)
			}
		}
		for _, c := range []struct{ asked, atMost, own, shared time.Duration }{
			{0, 0, time.Second, time.Second}, // not doubled yet
			{0, 0, 2250 * time.Millisecond, 2 * time.Second},
			{time.Second, 0, 4500 * time.Millisecond, 4 * time.Second},
			{time.Minute, 0, time.Minute, time.Minute}, // as the API has asked
			{0, 17 * time.Second, 17 * time.Second, 16 * time.Second},
		} {
			refuse(own, c.asked, c.atMost, c.own)
			refuse(shared, c.asked, c.atMost, c.shared)
		}
	})
}
