package outbound_test

import (
	"context"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// Two API keys have a limit each. Each job learns which key admitted it.
func ExamplePool() {
	keys := []string{"first key", "second key"}
	pool := new(outbound.Pool)
	for _, key := range keys {
		pool.Members = append(pool.Members, outbound.Must(outbound.NewBucket(key, outbound.PerMinute(1))))
	}
	for range 3 {
		err := outbound.Do(context.Background(), pool, outbound.Cost{1}, func(ctx context.Context) error {
			fmt.Println("call the API with the", keys[pool.Member(outbound.PermitFrom(ctx))])
			return nil
		})
		if err != nil {
			fmt.Println("neither key has capacity")
		}
	}
	// Output:
	// call the API with the first key
	// call the API with the second key
	// neither key has capacity
}
