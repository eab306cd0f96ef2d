package main

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func redisRate() contender {
	limiter := func(rdb redis.UniversalClient, limit redis_rate.Limit) func(string) bool {
		l := redis_rate.NewLimiter(rdb)
		ctx := context.Background()
		return func(key string) bool {
			r, err := l.Allow(ctx, key, limit)
			return err == nil && r.Allowed == 1
		}
	}
	return contender{
		name: "redis_rate",
		peer: true,
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			return limiter(rdb, redis_rate.PerSecond(plentyShared)), nil
		},
		sharedRefuse: func(rdb redis.UniversalClient) (func() bool, error) {
			take := limiter(rdb, redis_rate.PerHour(1))
			return func() bool { return take("key") }, nil
		},
		sharedWindow: func(rdb redis.UniversalClient, n int, window time.Duration) (func() bool, error) {
			take := limiter(rdb, redis_rate.Limit{Rate: n, Burst: n, Period: window})
			return func() bool { return take("key") }, nil
		},
		command: "evalsha",
		keeps:   true,
	}
}
