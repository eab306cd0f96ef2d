package redisstore_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestBucketsOfOneKeyAndEqualLimitsShareTrips(t *testing.T) {
	for name, c := range map[string]struct {
		limit func(i int) outbound.Limit
		trips int
	}{
		"one limit":        {func(int) outbound.Limit { return outbound.PerSecond(10) }, 2},
		"its name":         {func(int) outbound.Limit { return outbound.PerSecond(10).Of(0, strings.Clone("calls")) }, 2},
		"different limits": {func(i int) outbound.Limit { return outbound.PerSecond(float64(10 + i%2)) }, 11},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls = 10
				trips := 0
				s := bubbleStore(t, redisstore.Config{Timeout: time.Hour}, func(cmd redis.Cmder, _ func() error) error {
					trips++
					time.Sleep(100 * time.Millisecond)
					return grant(cmd)
				})
				var all sync.WaitGroup
				for i := range calls + 1 { // the first call goes alone
					b := outbound.Must(outbound.NewSharedBucket(s, "key", c.limit(i))) // as a program that makes a bucket for each request
					all.Go(func() {
						_, err := b.Acquire(context.Background(), outbound.Cost{1})
						require.NoError(t, err)
					})
					synctest.Wait()
				}
				all.Wait()
				time.Sleep(time.Minute) // until the pipeline's goroutine ends
				synctest.Wait()
				require.Equal(t, c.trips, trips)
			})
		})
	}
}

func TestBucketsOfOneKeyAndEqualLimitsShareARefusal(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute }) // a busy machine may stall for seconds
	var trips atomic.Int64
	rdb.AddHook(between(func(_ redis.Cmder, next func() error) error { trips.Add(1); return next() }))
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	// A bucket that leaks too slowly to have room while the test runs.
	limit := outbound.Limit{Capacity: 1, LeakRate: 1e-5}
	refused := func(limit outbound.Limit) bool {
		_, err := outbound.Must(outbound.NewSharedBucket(s, "refused", limit)).Acquire(t.Context(), outbound.Cost{1})
		return err != nil
	}
	require.False(t, refused(limit))
	require.Eventually(t, func() bool { // a remembered refusal is asked anew after a second
		before := trips.Load()
		for range 100 {
			require.True(t, refused(limit))
		}
		return trips.Load() <= before+1
	}, time.Minute, time.Millisecond)
	before := trips.Load()
	limit.LeakRate *= 2 // the store remembers nothing of these limits
	refused(limit)
	require.Greater(t, trips.Load(), before)
}

// BenchmarkBuckets makes many goroutines use one bucket, one bucket each, and one bucket for
// each call.
func TestLimitsThatAreInForceAlreadyChangeNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	limits := []outbound.Limit{outbound.PerSecond(10), outbound.PerHour(5_000).Burst(500).Of(0, "hour")}
	b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}), t.Name(), limits...))
	_, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	require.NoError(t, b.SetLimits(t.Context(), limits...))
	states, err := b.States(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, states[1].Level, 1.)
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	kept := func() map[string]string {
		all, err := rdb.HGetAll(t.Context(), keys[0]).Result()
		require.NoError(t, err)
		return all
	}
	was := kept()
	require.NoError(t, b.SetLimits(t.Context(), limits...))
	require.Equal(t, was, kept())
	require.NoError(t, b.SetLimits(t.Context()))
	was = kept()
	require.NoError(t, b.SetLimits(t.Context()))
	require.Equal(t, was, kept())
}

func BenchmarkBuckets(b *testing.B) {
	ctx := context.Background()
	rdb := redistest.Shared(b).Client(b)
	limit := outbound.Limit{Capacity: 1e11, LeakRate: 1e9}
	for _, c := range []struct {
		name string
		each func(i int, s leak.Store, all []*outbound.Bucket) *outbound.Bucket
	}{
		{"one", func(_ int, _ leak.Store, all []*outbound.Bucket) *outbound.Bucket { return all[0] }},
		{"two", func(i int, _ leak.Store, all []*outbound.Bucket) *outbound.Bucket { return all[i%2] }},
		{"each call its own", func(_ int, s leak.Store, all []*outbound.Bucket) *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(s, all[0].Key(), limit))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := redisstore.New(rdb, redisstore.Config{})
			var all []*outbound.Bucket
			for range 2 {
				all = append(all, outbound.Must(outbound.NewSharedBucket(s, b.Name(), limit)))
			}
			spread(b, 256, func(i int) {
				p, err := c.each(i, s, all).Acquire(ctx, outbound.Cost{1})
				if err != nil {
					b.Error(err)
				}
				p.Done()
			})
		})
	}
}
