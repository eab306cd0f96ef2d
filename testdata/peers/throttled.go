package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
)

// throttledLimiter tries until it has an answer. By default it answers with an
// error after ten lost races: in memory, with two goroutines, 3 times in 100;
// through Redis, with 64 goroutines on a key, mostly.
func throttledLimiter(store throttled.GCRAStoreCtx, rate throttled.Rate, burst int) (func(string) bool, error) {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: rate, MaxBurst: burst})
	if err != nil {
		return nil, err
	}
	l.SetMaxCASAttemptsLimit(1 << 30)
	ctx := context.Background()
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited
	}, nil
}

// throttledMemstore uses the store without a bound, the quicker of throttled's
// two. It never drops a key.
func throttledMemstore() contender {
	limiter := func(rate throttled.Rate, burst int) (func(string) bool, error) {
		store, err := memstore.NewCtx(0)
		if err != nil {
			return nil, err
		}
		return throttledLimiter(store, rate, burst)
	}
	return contender{
		name: "throttled",
		peer: true,
		admit: func() (func() bool, error) {
			take, err := limiter(throttled.PerSec(plenty), plenty)
			return func() bool { return take("key") }, err
		},
		refuse: func() (func() bool, error) {
			take, err := limiter(throttled.PerHour(1), 0)
			return func() bool { return take("key") }, err
		},
		keyed: func() (func(string) bool, func(), error) {
			take, err := limiter(throttled.PerSec(plenty), plenty)
			return take, nothing, err
		},
	}
}

// throttledRedis sends several commands for a decision, and all of them again for
// each race that it loses.
func throttledRedis() contender {
	limiter := func(rdb redis.UniversalClient, rate throttled.Rate, burst int) (func(string) bool, error) {
		store, err := goredisstore.NewCtx(rdb, "throttled:")
		if err != nil {
			return nil, err
		}
		return throttledLimiter(store, rate, burst)
	}
	return contender{
		name: "throttled",
		peer: true,
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			return limiter(rdb, throttled.PerSec(plentyShared), plentyShared)
		},
		sharedRefuse: func(rdb redis.UniversalClient) (func() bool, error) {
			take, err := limiter(rdb, throttled.PerHour(1), 0)
			return func() bool { return take("key") }, err
		},
		keeps: true,
	}
}
