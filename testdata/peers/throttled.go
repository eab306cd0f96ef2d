package main

import (
	"context"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

// throttledMemstore uses the store without a bound, the quicker of its two; it
// never drops a key. By default it answers with an error after ten lost races,
// with two goroutines 3 times in 100; here it goes on until it has an answer.
func throttledMemstore() contender {
	limiter := func(rate throttled.Rate, burst int) (func(string) bool, error) {
		store, err := memstore.NewCtx(0)
		if err != nil {
			return nil, err
		}
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
