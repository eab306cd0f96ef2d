package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// rivals are two workers of one key with different limits, and the calls that have left through
// each, by the server's clock.
type rivals struct {
	each   [2]outboundtest.History
	all    outboundtest.History
	differ bool
}

// compete makes two workers take what they can get, until this many calls have gone.
func compete(t *testing.T, s *server, calls int, limits [2][]outbound.Limit) *rivals {
	r := rand.New(rand.NewPCG(1, uint64(calls)))
	var c rivals
	var told events
	var at time.Time
	var buckets [2]*outbound.Bucket
	key := fmt.Sprint("rivals:", rand.Uint64())
	for i := range buckets {
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		buckets[i] = outbound.Must(outbound.NewSharedBucket(storeFunc(func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
			store.Forget(key)
			got, err := store.Update(ctx, key, op)
			at = time.Unix(0, int64(got.State.At))
			c.differ = c.differ || got.Differ
			return got, err
		}), key, limits[i]...))
	}
	for c.all.Len() < calls {
		i := r.IntN(2)
		n := float64(1 + r.IntN(3))
		if _, err := buckets[i].Acquire(t.Context(), outbound.Cost{n, n}); err == nil {
			c.each[i].Add(at, n)
			c.all.Add(at, n)
		} else {
			require.ErrorIs(t, err, outbound.ErrThrottled)
			s.forward(time.Duration(r.ExpFloat64() * 0.05e9).Truncate(time.Microsecond))
		}
		if r.IntN(500) == 0 {
			s.forward(time.Duration(r.IntN(10)) * time.Second)
		}
	}
	require.Equal(t, key, told.await(t, leak.EventDiffer).Key)
	require.True(t, c.differ)
	return &c
}

func TestWorkersWithDifferentLimitsAreEachHeldToTheirOwn(t *testing.T) {
	t.Parallel()
	common := outbound.Limit{Capacity: 50, LeakRate: 30, Name: "common"}
	own := [2]outbound.Limit{{Capacity: 5, LeakRate: 25, Name: "old"}, {Capacity: 20, LeakRate: 20, Name: "new", Unit: 1}}
	c := compete(t, newClocked(t), stepsOf(8000), [2][]outbound.Limit{{own[0], common}, {common, own[1]}})
	for i, l := range own {
		require.NoError(t, c.each[i].Check(l.Capacity, l.LeakRate, 1e-6), l.Name)
		require.Greater(t, c.each[i].Len(), 20)
	}
	require.NoError(t, c.all.Check(common.Capacity, common.LeakRate, 1e-6))
}

// A level that two workers share leaks by the rate of the worker that asks.
func TestWorkersWithDifferentShapesOfOneLimitStayWithinBothTogether(t *testing.T) {
	t.Parallel()
	slow, fast := outbound.Limit{Capacity: 5, LeakRate: 10}, outbound.Limit{Capacity: 20, LeakRate: 40}
	c := compete(t, newClocked(t), stepsOf(8000), [2][]outbound.Limit{{slow}, {fast}})
	require.NoError(t, c.all.Check(slow.Capacity+fast.Capacity, slow.LeakRate+fast.LeakRate, 1e-6))
	for i := range c.each {
		require.Greater(t, c.each[i].Len(), 3)
	}
}

// forgetful returns a worker's store that remembers no refusal.
func forgetful(rdb redis.UniversalClient) leak.Store {
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	return storeFunc(func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
		store.Forget(key)
		return store.Update(ctx, key, op)
	})
}

// Bookings at a higher rate let a limit leak faster. A Resume makes them void.
func TestAResumeTakesBackWhatCountedOnBookings(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	key := fmt.Sprint("resumed:", rand.Uint64())
	var buckets [2]*outbound.Bucket
	for i, rates := range [2][2]float64{{0.5, 1}, {1, 0.5}} {
		buckets[i] = outbound.Must(outbound.NewSharedBucket(forgetful(s.rdb), key, outbound.Limit{Capacity: 1, LeakRate: rates[0]}, outbound.Limit{Capacity: 2, LeakRate: rates[1], Unit: 1}))
	}
	_, err := buckets[0].Acquire(t.Context(), outbound.Cost{1, 2})
	require.NoError(t, err)
	require.NoError(t, buckets[0].Book(t.Context(), &outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: time.Minute}))
	require.NoError(t, buckets[1].Resume(t.Context()))
	_, err = buckets[1].Acquire(t.Context(), outbound.Cost{outbound.Free, 1})
	require.ErrorIs(t, err, outbound.ErrThrottled, "two of two have just left")
	s.forward(2 * time.Second)
	_, err = buckets[1].Acquire(t.Context(), outbound.Cost{outbound.Free, 1})
	require.NoError(t, err)
}

// A level remembers the capacity under which it was filled.
func TestAResumeByAWorkerWithASmallerCapacityRefillsNothing(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	key := fmt.Sprint("smaller:", rand.Uint64())
	var buckets [2]*outbound.Bucket
	for i, capacity := range [2]float64{10, 2} {
		buckets[i] = outbound.Must(outbound.NewSharedBucket(forgetful(s.rdb), key, outbound.Limit{Capacity: capacity, LeakRate: 10}))
	}
	_, err := buckets[0].Acquire(t.Context(), outbound.Cost{10})
	require.NoError(t, err)
	require.NoError(t, buckets[1].Resume(t.Context()))
	_, err = buckets[0].Acquire(t.Context(), outbound.Cost{1})
	require.ErrorIs(t, err, outbound.ErrThrottled)
	s.forward(time.Second)
	_, err = buckets[0].Acquire(t.Context(), outbound.Cost{10})
	require.NoError(t, err)
}

// A hold without bookings lets a limit leak ahead, and a Resume takes that back. That holds for
// the limit with the larger capacity, too, whichever limits the Resume comes under.
func TestAResumeUnderASmallerCapacityTakesBackWhatAHoldLetLeakInRedis(t *testing.T) {
	t.Parallel()
	long := outbound.Limit{Capacity: 20, LeakRate: 1, Name: "long"}
	short := outbound.Limit{Capacity: 20, LeakRate: 20}
	smaller := []outbound.Limit{short, {Capacity: 10, LeakRate: 1, Name: "long"}}
	for _, c := range []struct {
		name string
		own  []outbound.Limit // the second worker's limits
		set  []outbound.Limit // set for all before the Resume, and then set back to the first worker's limits
	}{
		{"another capacity", smaller, nil},
		{"another capacity that is set", smaller, smaller},
		{"another capacity that is set, and one limit less", []outbound.Limit{short}, smaller},
		{"another capacity that is set, at another rate", []outbound.Limit{short}, []outbound.Limit{short, {Capacity: 10, LeakRate: 0.5, Name: "long"}}},
	} {
		s := newMini(t)
		key := fmt.Sprint("held:", rand.Uint64())
		first := outbound.Must(outbound.NewSharedBucket(forgetful(s.rdb), key, short, long))
		second := outbound.Must(outbound.NewSharedBucket(forgetful(s.rdb), key, c.own...))
		_, err := first.Acquire(t.Context(), outbound.Cost{20})
		require.NoError(t, err)
		s.forward(time.Second)
		require.NoError(t, first.Hold(t.Context(), time.Minute))
		if c.set != nil {
			require.NoError(t, second.SetLimits(t.Context(), c.set...))
		}
		require.NoError(t, second.Resume(t.Context()))
		if c.set != nil {
			require.NoError(t, second.SetLimits(t.Context(), short, long))
		}
		s.forward(time.Second)
		states, err := first.States(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, states[1].Level, 18., "%s: two seconds after 20 of 20 at 1/s", c.name)
	}
}
