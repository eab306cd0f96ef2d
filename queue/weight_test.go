package queue

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// While calls wait in two queues of each process, the queues share the bucket by their weights, and
// use all of it. A queue that is alone has the whole rate.
func TestWeight_QueuesShareABucket(t *testing.T) {
	for _, f := range []struct {
		processes int
		way       time.Duration // to the store and back
		rate      float64
		counted   time.Duration
	}{
		{processes: 1, rate: 1, counted: time.Minute},
		{processes: 1, rate: 10, counted: time.Minute},
		{processes: 1, rate: 1000, counted: time.Minute},
		// Ten queues of weight 9 and ten of weight 1 have a round of 100 calls.
		{processes: 10, way: ms, rate: 1, counted: 20 * time.Minute},
		{processes: 10, way: ms, rate: 10, counted: 2 * time.Minute},
		{processes: 10, way: ms, rate: 1000, counted: time.Minute},
		{processes: 10, way: 10 * ms, rate: 10, counted: 2 * time.Minute},
		{processes: 10, way: 10 * ms, rate: 1000, counted: time.Minute},
	} {
		for _, weights := range [][2]float64{{9, 0}, {1, 1.0 / 9}, {50, 0}} {
			if raced && (f.rate == 1000 || f.way == ms) || weights[0] == 50 && (f.processes > 1 || f.rate == 1) {
				continue // a round of 51 calls is long
			}
			want := weights[0] / (weights[0] + cmp.Or(weights[1], 1))
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(bg)
				alone, stop := context.WithCancel(bg)
				m, limit := store.NewMemory(), outbound.Per(f.rate, time.Second)
				b := bucket(t, limit)
				var users, batch []*atomic.Int64
				for range f.processes {
					if f.way > 0 {
						b = shared(t, &far{Store: m, way: f.way, jitter: 0.05}, limit)
					}
					users = append(users, loop(t, ctx, New(b, Config{Weight: weights[0]}), 60, nil))
					batch = append(batch, loop(t, alone, New(b, Config{Weight: weights[1]}), 40, nil))
				}
				count := func(length time.Duration) (u, b float64) {
					for i := range users {
						u, b = u-float64(users[i].Load()), b-float64(batch[i].Load())
					}
					pass(length)
					for i := range users {
						u, b = u+float64(users[i].Load()), b+float64(batch[i].Load())
					}
					return u, b
				}
				count(time.Duration(20*f.processes) * time.Second * 10 / time.Duration(min(f.rate, 10)))
				u, b2 := count(f.counted)
				whole := f.rate * f.counted.Seconds()
				if share, use := u/(u+b2), (u+b2)/whole; math.Abs(share-want) > (1-want)*0.1 || use < 0.97 {
					t.Errorf("%+v, weights %v: %v and %v calls, %.3f of the rate", f, weights, u, b2, use)
				}
				cancel()
				count(time.Duration(600/min(f.rate, 100)) * time.Second) // reservations of the first pass
				if u, b2 := count(10 * time.Second); u > 0 || b2 < f.rate*10*0.9 {
					t.Errorf("%+v, weights %v, alone: %v and %v calls", f, weights, u, b2)
				}
				stop()
				pass(time.Second)
			})
		}
	}
}

// A tenant with 10,000 calls delays none of 999 others with the same weight: while these use their
// shares, their waits are as without it.
func TestWeight_BacklogOfATenantDelaysNoOther(t *testing.T) {
	notRaced(t)
	const backlog, seconds = 10_000, 60.
	p95 := func(backlog int, load float64) (wait time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			const rate, tenants = 100, 999
			b := bucket(t, outbound.PerSecond(rate))
			queues := &outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return New(b, Config{}), nil }}
			ctx, cancel := context.WithCancel(bg)
			for range backlog {
				comeAndUse(ctx, queues.For(0), done, 1)
			}
			r, all := rand.New(rand.NewPCG(3, 4)), make(calls, int(load*rate*seconds))
			for i := range all {
				time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second) / rate / load))
				all[i] = comeAndUse(ctx, queues.For(1+r.IntN(tenants)), done, 1)
			}
			cancel()
			synctest.Wait()
			wait = all.p95()
		})
		return wait
	}
	for load, bound := range map[float64]func(without time.Duration) time.Duration{
		1.5: func(d time.Duration) time.Duration { return d * 102 / 100 },
		// The tenant uses what the others leave. A call waits for what is booked when it comes, with
		// one call of the tenant, which books its next when that has left: 57 ms without any lateness.
		// If the tenant only had what no other call waits for, it would be 26 ms, because the bucket is
		// never empty then.
		0.5: func(d time.Duration) time.Duration { return d + 60*ms },
	} {
		without, with := p95(0, load), p95(backlog, load)
		if t.Logf("load %v: %v without, %v with", load, without, with); with > bound(without) {
			t.Errorf("load %v: the others wait %v, and %v without the tenant", load, with, without)
		}
	}
}
