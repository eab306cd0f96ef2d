package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

var endlessShared = outbound.Limit{Capacity: plentyShared, LeakRate: plentyShared}

func dripfeedShared() contender {
	return sharedBuckets(subject, []outbound.Limit{endlessShared}, []outbound.Limit{oneAnHour})
}

// dripfeedSharedLimits has three limits in a bucket. Only the last may refuse.
func dripfeedSharedLimits() contender {
	two := []outbound.Limit{endlessShared, endlessShared.Of(0, "second")}
	return sharedBuckets(subject+", three limits",
		append(two[:2:2], endlessShared.Of(0, "third")),
		append(two[:2:2], oneAnHour.Of(0, "third")))
}

func sharedBuckets(name string, admit, refuse []outbound.Limit) contender {
	return contender{
		name: name,
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			return bucketsOf(redisstore.New(rdb, redisstore.Config{}), admit...), nil
		},
		sharedRefuse: func(rdb redis.UniversalClient) (func() bool, error) {
			return sharedBucket(rdb, refuse)
		},
		command: "evalsha",
		keeps:   true,
	}
}

// sharedBucket returns the decision of a worker of its own, on one bucket.
func sharedBucket(rdb redis.UniversalClient, limits []outbound.Limit) (func() bool, error) {
	b, err := outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "key", limits...)
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
