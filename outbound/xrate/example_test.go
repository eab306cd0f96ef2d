package xrate_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/xrate"
)

// A program that has a rate.Limiter paces its calls with it.
func ExampleLimiter() {
	mine := rate.NewLimiter(rate.Every(time.Hour), 2)

	var limiter outbound.Limiter = &xrate.Limiter{Rate: mine, Key: "reports"}
	for range 3 {
		permit, err := limiter.Acquire(context.Background(), outbound.Cost{1})
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			fmt.Println("come back in", full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("call")
		permit.Done()
	}
	// Output:
	// call
	// call
	// come back in 1h0m0s
}

// A rate.Limiter that counts another unit than calls, here the tokens of a
// language model: the cost is the most that the call may take.
func ExampleLimiter_unit() {
	const (
		calls = iota
		tokens
	)
	limiter := &xrate.Limiter{Rate: rate.NewLimiter(500, 3000), Unit: tokens, Key: "model"}

	_, err := limiter.Acquire(context.Background(), outbound.Cost{calls: 1, tokens: 2500})
	fmt.Println(err)
	_, err = limiter.Acquire(context.Background(), outbound.Cost{calls: 1, tokens: 3500})
	fmt.Println(errors.Is(err, outbound.ErrTooLarge))
	// Output:
	// <nil>
	// true
}
