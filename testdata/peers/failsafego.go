package main

import (
	"context"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
)

func failsafego() contender {
	return contender{
		name: "failsafe-go",
		peer: true,
		admit: func() (func() bool, error) {
			return ratelimiter.NewSmooth[any](plenty, time.Second).TryAcquirePermit, nil
		},
		refuse: func() (func() bool, error) {
			return ratelimiter.NewSmooth[any](1, time.Hour).TryAcquirePermit, nil
		},
		alone: true,
		keyed: func() (func(string) bool, func(), error) {
			var m keyedMap[ratelimiter.RateLimiter[any]]
			create := func() ratelimiter.RateLimiter[any] {
				return ratelimiter.NewSmooth[any](plenty, time.Second)
			}
			return func(key string) bool { return m.get(key, create).TryAcquirePermit() }, nothing, nil
		},
		wait: func(perSecond float64) (func(context.Context) error, error) {
			each := time.Duration(float64(time.Second) / perSecond)
			return ratelimiter.NewSmoothWithMaxRate[any](each).AcquirePermit, nil
		},
		cancels: true,
		wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			return failsafehttp.NewRoundTripper(base, ratelimiter.NewSmooth[*http.Response](plenty, time.Second)), nil
		},
	}
}

// failsafegoBursty admits all calls of a window in one burst, unlike its other limits.
func failsafegoBursty() contender {
	return contender{
		name: "failsafe-go, bursty",
		peer: true,
		window: func(n int, window time.Duration) (func() bool, error) {
			return ratelimiter.NewBursty[any](uint(n), window).TryAcquirePermit, nil
		},
		alone: true,
	}
}
