package main

import (
	"context"
	"time"

	"go.uber.org/ratelimit"
)

// uber cannot refuse, but only wait. With this rate and slack it never has to.
// Its rates are whole numbers per some duration.
func uber() contender {
	return contender{
		name: "uber/ratelimit",
		peer: true,
		admit: func() (func() bool, error) {
			l := ratelimit.New(plenty, ratelimit.WithSlack(plenty))
			return func() bool { l.Take(); return true }, nil
		},
		alone: true,
		keyed: func() (func(string) bool, func(), error) {
			var m keyedMap[ratelimit.Limiter]
			create := func() ratelimit.Limiter { return ratelimit.New(plenty, ratelimit.WithSlack(plenty)) }
			return func(key string) bool { m.get(key, create).Take(); return true }, nothing, nil
		},
		wait: func(perSecond float64) (func(context.Context) error, error) {
			each := time.Duration(float64(time.Second) / perSecond)
			l := ratelimit.New(1, ratelimit.Per(each), ratelimit.WithoutSlack)
			return func(context.Context) error { l.Take(); return nil }, nil
		},
	}
}
