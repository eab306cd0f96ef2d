package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
)

// errLacks says that a tree has nothing of the kind. With -against that leaves the row
// out.
var errLacks = errors.New("this dripfeed has no such limit")

// windowLimit reads the limit from JSON, because a tree without windows has no function
// of the name either. A window keeps 10 ms more than it is asked for.
func windowLimit(n int, window time.Duration) (l outbound.Limit, err error) {
	text := fmt.Sprintf(`{"kind":"window","capacity":%d,"per":%d}`, n, window-10*time.Millisecond)
	if err = json.Unmarshal([]byte(text), &l); err != nil {
		err = fmt.Errorf("%w: %w", errLacks, err)
	}
	return l, err
}

// leakyLimit is the leaky limit of the same number.
func leakyLimit(n int, window time.Duration) outbound.Limit {
	return outbound.Limit{Capacity: float64(n), LeakRate: float64(n) / window.Seconds()}
}

// A limitsOf returns the limits of a bucket for n calls in a window.
type limitsOf func(n int, window time.Duration) ([]outbound.Limit, error)

func oneLeaky(n int, window time.Duration) ([]outbound.Limit, error) {
	return []outbound.Limit{leakyLimit(n, window)}, nil
}

// twoLeaky keep a bucket from the quick way of one limit alone, which a window has not
// either.
func twoLeaky(n int, window time.Duration) ([]outbound.Limit, error) {
	l := leakyLimit(n, window)
	return []outbound.Limit{l, l.Of(0, "second")}, nil
}

func oneWindow(n int, window time.Duration) ([]outbound.Limit, error) {
	l, err := windowLimit(n, window)
	return []outbound.Limit{l}, err
}

func windowAndLeaky(n int, window time.Duration) ([]outbound.Limit, error) {
	l, err := windowLimit(n, window)
	return []outbound.Limit{l, leakyLimit(n, window).Of(0, "second")}, err
}

func dripfeedWindow(suffix string, limits limitsOf) contender {
	return contender{
		name: subject + suffix,
		window: func(n int, window time.Duration) (func() bool, error) {
			list, err := limits(n, window)
			if err != nil {
				return nil, err
			}
			return bucketOf(list...)()
		},
		alone: true,
		sharedWindow: func(rdb redis.UniversalClient, n int, window time.Duration) (func() bool, error) {
			list, err := limits(n, window)
			if err != nil {
				return nil, err
			}
			return sharedBucket(rdb, list)
		},
		command: "evalsha",
	}
}
