package outbound_test

import (
	"context"
	"fmt"
	"time"

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

// Observe reports what an operator, another process and the API's answers to calls have done.
func ExampleBucket_Observe() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
	events := make(chan outbound.Event)
	stop := bucket.Observe(func(c outbound.Event) { events <- c })
	defer stop()

	if err := bucket.Hold(ctx, time.Minute); err != nil {
		fmt.Println(err)
		return
	}
	c := <-events
	fmt.Println("weather", c.Kind, "for", c.Hold)
	if err := bucket.Resume(ctx); err != nil {
		fmt.Println(err)
		return
	}
	c = <-events
	fmt.Println("weather", c.Kind)
	// Output:
	// weather held for 1m0s
	// weather resumed
}
