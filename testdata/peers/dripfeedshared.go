package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func dripfeedShared() contender {
	return contender{
		name: subject,
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			store := redisstore.New(rdb, redisstore.Config{})
			limit := outbound.Limit{Capacity: plentyShared, LeakRate: plentyShared}
			k := &outbound.Keyed[string]{
				New: func(key string) (outbound.Limiter, error) { return outbound.NewSharedBucket(store, key, limit) },
			}
			ctx := context.Background()
			return func(key string) bool {
				permit, err := k.Acquire(ctx, key, one)
				if err != nil {
					return false
				}
				permit.Done()
				return true
			}, nil
		},
		sharedRefuse: func(rdb redis.UniversalClient) (func() bool, error) {
			b, err := outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "key", oneAnHour)
			ctx := context.Background()
			return func() bool {
				permit, err := b.Acquire(ctx, one)
				if err != nil {
					return false
				}
				permit.Done()
				return true
			}, err
		},
		command: "evalsha",
		keeps:   true,
	}
}
