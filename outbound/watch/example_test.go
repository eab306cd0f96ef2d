package watch_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

func ExampleBoard() {
	bucket := outbound.Must(outbound.NewBucket("github", outbound.Limit{Capacity: 3, LeakRate: 0.001}))
	var board watch.Board
	limiter := board.Add("github", queue.New(bucket, queue.Config{MaxWait: 1})) // use the result
	mux := http.NewServeMux()
	mux.Handle("/debug/dripfeed", &board)
	mux.Handle("/metrics", board.Metrics())

	for range 5 {
		if permit, err := limiter.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			permit.Done()
		}
	}
	now := board.Snapshot(context.Background(), watch.Query{}).Limiters[0]
	fmt.Println(now.Calls.Admitted, "admitted,", now.Calls.Refused, "refused")
	fmt.Println(now.Trouble[0])
	// Output:
	// 3 admitted, 2 refused
	// 2 calls were refused by us in the last minute.
}
