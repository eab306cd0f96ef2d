package retry_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/retry"
)

// Three workers retry through one bucket, which is in a store. When the API has refused a
// call of one of them, the others do not call it either.
func ExampleConfig_NewClient_sharedBucket() {
	store := store.NewMemory() // a fleet uses redisstore.New(…)
	network := &api{statuses: []int{200, 429}, retryAfter: "3600"}
	for worker := range 3 {
		bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(100))
		if err != nil {
			fmt.Println(err)
			return
		}
		client := retry.Config{MaxWait: time.Minute}.NewClient(&transport.Transport{
			Base:    network,
			Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
		})
		resp, err := client.Get("https://weather.example.com/today")
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Println("worker", worker+1, "comes back in", full.RetryAfter.Round(time.Minute))
			continue
		} else if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println("worker", worker+1, "has", resp.StatusCode)
	}
	fmt.Println(network.sent, "calls have reached the API")
	// Output:
	// worker 1 has 200
	// worker 2 has 429
	// worker 3 comes back in 1h0m0s
	// 2 calls have reached the API
}
