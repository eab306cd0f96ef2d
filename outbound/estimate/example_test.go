package estimate_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/estimate"
	"github.com/dripfeed/dripfeed/queue"
)

// Each call of a language model has a known number of input tokens. The average of earlier calls
// predicts its output tokens.
func ExampleAverage() {
	const (
		requests = iota
		input
		output
	)
	bucket := outbound.Must(outbound.NewBucket("model",
		outbound.PerMinute(500),
		outbound.Window(30_000, time.Minute).Of(input, "input tokens"),
		outbound.Window(8_000, time.Minute).Of(output, "output tokens"),
	))
	calls := queue.New(bucket, queue.Config{})
	estimates := estimate.Average{Bucket: bucket, First: outbound.Cost{output: 300}}
	ctx := context.Background()

	for range 2 {
		known := outbound.Cost{requests: 1, input: 900}
		cost := estimates.Cost(known)
		permit, err := calls.Acquire(ctx, cost)
		if err != nil {
			fmt.Println(err)
			return
		}
		used := outbound.Cost{requests: 1, input: 900, output: 420} // as the API reports it
		permit.Settle(used)
		permit.Done()
		estimates.Learn(known, used)
		fmt.Printf("%.0f output tokens expected, %.0f used\n", cost[output], used[output])
	}
	// Output:
	// 300 output tokens expected, 420 used
	// 420 output tokens expected, 420 used
}
