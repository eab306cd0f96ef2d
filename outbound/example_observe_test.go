package outbound_test

import (
	"context"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// An adapter for metrics or logs is a function of an event.
func ExampleObserve() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerHour(1)))
	limiter := outbound.Observe(bucket, "weather", func(_ context.Context, e outbound.Event) {
		switch e.Kind {
		case outbound.EventEnded:
			fmt.Println(e.Name, e.Kind, "succeeded:", e.Succeeded)
		default:
			fmt.Println(e.Name, e.Kind)
		}
	})

	permit, err := limiter.Acquire(ctx, outbound.Cost{1})
	if err != nil {
		fmt.Println(err)
		return
	}
	permit.Done()
	if _, err := limiter.Acquire(ctx, outbound.Cost{1}); err == nil {
		fmt.Println("two calls in an hour")
	}
	// Output:
	// weather admitted
	// weather ended succeeded: true
	// weather refused
}
