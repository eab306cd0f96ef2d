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

// bucketOf ends every permit, as dripfeed's users must.
func bucketOf(limits ...outbound.Limit) func() (func() bool, error) {
	return func() (func() bool, error) {
		b, err := outbound.NewBucket("peers", limits...)
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

func dripfeed() contender {
	return contender{
		name:   subject,
		admit:  bucketOf(endless),
		refuse: bucketOf(oneAnHour),
		alone:  true,
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

// dripfeedLimits has three limits in a bucket. Only the last may refuse.
func dripfeedLimits() contender {
	return contender{
		name:   subject + ", three limits",
		admit:  bucketOf(endless, endless.Of(0, "second"), endless.Of(0, "third")),
		refuse: bucketOf(endless, endless.Of(0, "second"), oneAnHour.Of(0, "third")),
		alone:  true,
	}
}

// dripfeedQueue has a queue before the bucket. It is empty.
func dripfeedQueue() contender {
	return contender{
		name: subject + ", through a queue",
		admit: func() (func() bool, error) {
			b, err := outbound.NewBucket("peers", endless)
			if err != nil {
				return nil, err
			}
			q := queue.New(b, queue.Config{})
			ctx := context.Background()
			return func() bool {
				permit, err := q.Acquire(ctx, one)
				if err != nil {
					return false
				}
				permit.Done()
				return true
			}, nil
		},
		alone: true,
	}
}

// dripfeedAcquire leaves out Done, to measure the decision alone.
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
