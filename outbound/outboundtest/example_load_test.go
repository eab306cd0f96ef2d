package outboundtest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
)

// Two callers make 20 calls. In a testing/synctest bubble that would take no time.
func ExampleLoad() {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: 1000}))
	load := outboundtest.Load{Calls: 20, Callers: 2, Latency: time.Millisecond}
	r := load.Run(context.Background(), queue.New(bucket, queue.Config{}))
	fmt.Println(len(r.Waits), "calls went,", r.Refused, "were refused,", r.Failed, "were given up")
	fmt.Println("faster than the limit:", r.Took < 19*time.Millisecond)
	// Output:
	// 20 calls went, 0 were refused, 0 were given up
	// faster than the limit: false
}
