package main

import (
	"context"
	"math"
	"net/http"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

var (
	one       = outbound.Cost{1}
	endless   = outbound.Limit{Capacity: plenty, LeakRate: plenty}
	oneAnHour = outbound.Limit{Capacity: 1, LeakRate: 1.0 / 3600}
)

// dripfeed ends every permit, as its users must.
func dripfeed() contender {
	single := func(limit outbound.Limit) func() (func() bool, error) {
		return func() (func() bool, error) {
			b, err := outbound.NewBucket("peers", limit)
			ctx := context.Background()
			return func() bool {
				permit, err := b.Acquire(ctx, one)
				if err != nil {
					return false
				}
				permit.Done()
				return true
			}, err
		}
	}
	return contender{
		name:   subject,
		admit:  single(endless),
		refuse: single(oneAnHour),
		keyed: func() (func(string) bool, func(), error) {
			k := &outbound.Keyed[string]{
				New: func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, endless) },
				Max: 2_000_000,
			}
			ctx := context.Background()
			return func(key string) bool {
				permit, err := k.Acquire(ctx, key, one)
				if err != nil {
					return false
				}
				permit.Done()
				return true
			}, nothing, nil
		},
		wait: func(perSecond float64) (func(context.Context) error, error) {
			b, err := outbound.NewBucket("peers", outbound.Limit{Capacity: 1, LeakRate: perSecond})
			if err != nil {
				return nil, err
			}
			q := queue.New(b, queue.Config{MaxLen: 2_000_000, MaxWait: math.MaxInt64})
			return func(ctx context.Context) error {
				permit, err := q.Acquire(ctx, one)
				if err != nil {
					return err
				}
				permit.Done()
				return nil
			}, nil
		},
		cancels: true,
		wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			b, err := outbound.NewBucket("peers", endless)
			return &transport.Transport{Base: base, Limiter: b}, err
		},
	}
}

// dripfeedAcquire leaves Done out: what the decision alone costs.
func dripfeedAcquire() contender {
	single := func(limit outbound.Limit) func() (func() bool, error) {
		return func() (func() bool, error) {
			b, err := outbound.NewBucket("peers", limit)
			ctx := context.Background()
			return func() bool {
				_, err := b.Acquire(ctx, one)
				return err == nil
			}, err
		}
	}
	return contender{
		name:   subject + ", Acquire alone",
		admit:  single(endless),
		refuse: single(oneAnHour),
	}
}
