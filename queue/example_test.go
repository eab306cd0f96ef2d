package queue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Calls wait, first in, first out.
func ExampleQueue() {
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(1000)))
	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})

	for range 5 {
		permit, err := q.Acquire(context.Background(), outbound.Cost{1})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("call the API")
		permit.Done()
	}
	// Output:
	// call the API
	// call the API
	// call the API
	// call the API
	// call the API
}

// A call that would wait too long is refused immediately.
func ExampleQueue_Acquire_refused() {
	bucket := outbound.Must(outbound.NewBucket("reports", outbound.PerHour(1)))
	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})

	_, err := q.Acquire(context.Background(), outbound.Cost{1})
	fmt.Println("first:", err)

	_, err = q.Acquire(context.Background(), outbound.Cost{1})
	var full *outbound.ThrottledError
	if errors.As(err, &full) {
		fmt.Println("second: put the job back for", full.RetryAfter.Round(time.Minute))
	}
	// Output:
	// first: <nil>
	// second: put the job back for 1h0m0s
}

// Shutdown lets the calls that wait go before the program ends.
func ExampleQueue_Shutdown() {
	bucket := outbound.Must(outbound.NewBucket("mail", outbound.PerSecond(100)))
	q := queue.New(bucket, queue.Config{})

	fmt.Println(q.Shutdown(context.Background()))
	_, err := q.Acquire(context.Background(), outbound.Cost{1})
	fmt.Println(errors.Is(err, queue.ErrClosed))
	// Output:
	// <nil>
	// true
}
