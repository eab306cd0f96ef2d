package queue_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Users and batch work share one limit. While both wait, a tenth of the calls is batch work.
func ExampleConfig_weight() {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(200)))
	queues := map[string]*queue.Queue{
		"users": queue.New(bucket, queue.Config{Weight: 9}),
		"batch": queue.New(bucket, queue.Config{Weight: 1}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	left := map[string]int{}
	for name, q := range queues {
		for range 20 { // each makes one call after the other
			all.Go(func() {
				for {
					permit, err := q.Acquire(ctx, outbound.Cost{1})
					if err != nil {
						return // ctx has ended
					}
					permit.Done()
					mu.Lock()
					if left[name]++; left["users"]+left["batch"] == 200 {
						cancel()
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	// On an idle machine it is about a tenth. A busy one may run the goroutines of a queue late.
	fmt.Println("less than a third is batch work:", 3*left["batch"] < left["users"]+left["batch"])
	// Output:
	// less than a third is batch work: true
}
