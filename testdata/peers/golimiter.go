package main

import (
	"context"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
)

// goLimiter refills all tokens at the end of an interval. So the interval is longer than any run,
// and the tokens last.
func goLimiter() contender {
	single := func(tokens uint64) func() (func() bool, error) {
		return func() (func() bool, error) { return goLimiterOf(tokens, ever) }
	}
	return contender{
		name:   "go-limiter",
		peer:   true,
		admit:  single(1 << 62),
		refuse: single(1),
		keyed: func() (func(string) bool, func(), error) {
			return goLimiterStore(1<<62, ever)
		},
	}
}

// goLimiterWindow lets the intervals end.
func goLimiterWindow() contender {
	return contender{
		name: "go-limiter",
		peer: true,
		window: func(n int, window time.Duration) (func() bool, error) {
			return goLimiterOf(uint64(n), window)
		},
	}
}

func goLimiterOf(tokens uint64, interval time.Duration) (func() bool, error) {
	take, _, err := goLimiterStore(tokens, interval)
	return func() bool { return take("key") }, err
}

func goLimiterStore(tokens uint64, interval time.Duration) (take func(key string) bool, stop func(), err error) {
	s, err := memorystore.New(&memorystore.Config{Tokens: tokens, Interval: interval})
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	take = func(key string) bool {
		_, _, _, ok, err := s.Take(ctx, key)
		return ok && err == nil
	}
	return take, func() { _ = s.Close(ctx) }, nil
}
