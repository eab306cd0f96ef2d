package main

import (
	"context"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
)

// goLimiter refills all tokens at once at the end of an interval. So the
// interval is longer than any run, and the tokens last.
func goLimiter() contender {
	store := func(tokens uint64) (func(string) bool, func(), error) {
		s, err := memorystore.New(&memorystore.Config{Tokens: tokens, Interval: 1000 * time.Hour})
		if err != nil {
			return nil, nil, err
		}
		ctx := context.Background()
		take := func(key string) bool {
			_, _, _, ok, err := s.Take(ctx, key)
			return ok && err == nil
		}
		return take, func() { _ = s.Close(ctx) }, nil
	}
	single := func(tokens uint64) func() (func() bool, error) {
		return func() (func() bool, error) {
			take, _, err := store(tokens)
			return func() bool { return take("key") }, err
		}
	}
	return contender{
		name:   "go-limiter",
		peer:   true,
		admit:  single(1 << 62),
		refuse: single(1),
		keyed: func() (func(string) bool, func(), error) {
			return store(1 << 62)
		},
	}
}
