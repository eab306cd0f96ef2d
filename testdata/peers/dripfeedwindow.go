package main

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
)

// errLacks says that a tree has nothing of the kind. With -against that leaves the row
// out.
var errLacks = errors.New("this dripfeed has no such limit")

// windowLimit takes off the 10 ms that a window keeps beyond what it is asked for.
func windowLimit(n int, window time.Duration) outbound.Limit {
	return outbound.Window(float64(n), window-10*time.Millisecond)
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
	return []outbound.Limit{windowLimit(n, window)}, nil
}

func windowAndLeaky(n int, window time.Duration) ([]outbound.Limit, error) {
	return []outbound.Limit{windowLimit(n, window), leakyLimit(n, window).Of(0, "second")}, nil
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
