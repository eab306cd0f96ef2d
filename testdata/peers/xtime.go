package main

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

func xtime() contender {
	return contender{
		name: "x/time/rate",
		peer: true,
		admit: func() (func() bool, error) {
			return rate.NewLimiter(plenty, plenty).Allow, nil
		},
		refuse: func() (func() bool, error) {
			return rate.NewLimiter(rate.Every(time.Hour), 1).Allow, nil
		},
		alone: true,
		keyed: func() (func(string) bool, func(), error) {
			var m keyedMap[*rate.Limiter]
			create := func() *rate.Limiter { return rate.NewLimiter(plenty, plenty) }
			return func(key string) bool { return m.get(key, create).Allow() }, nothing, nil
		},
		wait: func(perSecond float64) (func(context.Context) error, error) {
			return rate.NewLimiter(rate.Limit(perSecond), 1).Wait, nil
		},
		cancels: true,
		wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			return &xtimeTransport{base, rate.NewLimiter(plenty, plenty)}, nil
		},
	}
}

// xtimeThree asks three limiters in a row. Only the last may refuse.
func xtimeThree() contender {
	build := func(last func() *rate.Limiter) func() (func() bool, error) {
		return func() (func() bool, error) {
			a, b, c := rate.NewLimiter(plenty, plenty), rate.NewLimiter(plenty, plenty), last()
			return func() bool { return a.Allow() && b.Allow() && c.Allow() }, nil
		}
	}
	return contender{
		name:   "x/time/rate, three in a row",
		admit:  build(func() *rate.Limiter { return rate.NewLimiter(plenty, plenty) }),
		refuse: build(func() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Hour), 1) }),
		alone:  true,
	}
}

type xtimeTransport struct {
	base  http.RoundTripper
	limit *rate.Limiter
}

func (t *xtimeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.limit.Allow() {
		return nil, errNoRoom
	}
	return t.base.RoundTrip(r)
}
