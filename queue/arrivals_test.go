package queue_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// arrival is a call that comes whether or not earlier ones were answered.
type arrival struct {
	at, within, took time.Duration // within 0: its ctx has no deadline
	cost             outbound.Cost
}

// arrivals are calls at random times, 15 per second on an average.
func arrivals(seed uint64, n int, mixed bool) (all []arrival) {
	rnd := rand.New(rand.NewPCG(seed, 18))
	at := time.Duration(0)
	for range n {
		at += time.Duration(rnd.ExpFloat64() * float64(time.Second) / 15)
		a := arrival{at: at, took: time.Duration(rnd.IntN(int(60 * time.Millisecond))), cost: outbound.Cost{1}}
		if mixed && rnd.IntN(4) == 0 {
			a.within = time.Duration(rnd.Int64N(int64(4 * time.Second)))
		}
		if mixed {
			a.cost[0] = float64(1 + rnd.IntN(3))
		}
		all = append(all, a)
	}
	return all
}

// run lets the calls come, and calls call in a goroutine for each.
func run(all []arrival, call func(ctx context.Context, i int)) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, a := range all {
		time.Sleep(a.at - time.Since(begin))
		wg.Go(func() {
			ctx := context.Background()
			if a.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, a.within)
				defer cancel()
			}
			call(ctx, i)
		})
		synctest.Wait() // so that calls come in their order
	}
	wg.Wait()
}
