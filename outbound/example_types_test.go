package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A bucket admits calls up to its limits, and refuses the next one with the time to retry.
func ExampleBucket() {
	bucket, err := outbound.NewBucket("reports", outbound.Window(2, time.Hour))
	if err != nil {
		panic(err)
	}
	for range 3 {
		permit, err := bucket.Acquire(context.Background(), outbound.Cost{1})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Printf("%s is over the limit %q, retry in %v\n", full.Key, full.Limit, full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("admitted")
		permit.Done()
	}
	// Output:
	// admitted
	// admitted
	// reports is over the limit "2 per 1h", retry in 1h0m0s
}

// A limit has one of five kinds. String writes what ParseLimit reads.
func ExampleLimit() {
	for _, limit := range []outbound.Limit{
		outbound.PerSecond(10),                             // spaced evenly
		outbound.PerMinute(600).Burst(20),                  // spaced evenly after a burst
		outbound.Window(5_000, time.Hour),                  // in any hour
		outbound.Daily(10_000, time.UTC).Of(1, "tokens"),   // in a day, of the second number of a Cost
		outbound.InFlight(5),                               // at the same time
		{Capacity: 40, LeakRate: 2, Name: "shop's bucket"}, // as the API publishes
	} {
		fmt.Println(limit)
	}
	// Output:
	// 10 per 1s
	// 600 per 1m, 20 burst
	// 5000 in any 1h
	// tokens (unit 1): 10000 per day UTC
	// 5 in flight
	// shop's bucket: 40 burst, 2/s
}

// A permit learns what the API replies: after a 429 the bucket holds all calls.
func ExamplePermit() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("crm", outbound.PerSecond(10)))

	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
	if err != nil {
		panic(err)
	}
	permit.Refused(time.Minute) // the API has answered 429, Retry-After: 60
	permit.Done()

	_, err = bucket.Acquire(ctx, outbound.Cost{1})
	var full *outbound.ThrottledError
	fmt.Println(errors.As(err, &full) && full.Held, full.RetryAfter.Round(time.Second))
	// Output: true 1m0s
}
