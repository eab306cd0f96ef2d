package redisstore_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestACallerBackAtRetryAfterIsAdmittedByRedis(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	ctx := context.Background()
	r := rand.New(rand.NewPCG(4, 4))
	for i := range 100 {
		if raced && i%5 > 0 {
			continue
		}
		rate := math.Exp((r.Float64()*16 - 7) * math.Ln10)
		drain := math.Exp((r.Float64()*13 - 4) * math.Ln10)
		limits := []outbound.Limit{{Capacity: min(1e12, math.Ceil(drain*rate)), LeakRate: rate}}
		if i < 30 {
			limits[0] = outbound.Per(1, time.Duration(20+i*10)*24*time.Hour)
		}
		if limits[0].Capacity/limits[0].LeakRate > 1e9 {
			continue
		}
		if r.IntN(2) == 0 {
			second := limits[0].Of(0, "second")
			second.Capacity *= 1 + r.Float64()
			second.LeakRate *= 0.5 + r.Float64()
			limits = append(limits, second)
		}
		now := time.Unix(1_700_000_000, 0)
		mini.SetTime(now)
		key := fmt.Sprint("back:", i)
		book := func(n float64) leak.Reply {
			op := &leak.Op{Action: leak.Book, Costs: make([]leak.Units, 1), Horizon: 1} // with a Horizon no remembered refusal answers
			for i, l := range limits {
				op.Limits = append(op.Limits, leak.Limit{Name: l.Name, Capacity: l.Capacity, Rate: l.LeakRate})
				op.Costs[0][i] = op.Limits[i].Takes(n)
			}
			result, err := store.Update(ctx, key, op)
			require.NoError(t, err)
			return result
		}
		for range 6 {
			n := limits[0].Capacity
			switch r.IntN(4) {
			case 0:
				n *= r.Float64()
			case 1:
				n = min(n, 1)
			case 2:
				n = math.Ceil(n * r.Float64())
			}
			result := book(n)
			if !result.Refused {
				continue
			}
			require.Positive(t, result.Wait, "%v: a cost of %v: %+v", limits, n, result)
			now = now.Add(result.Wait + time.Microsecond - 1).Truncate(time.Microsecond)
			mini.SetTime(now)
			if again := book(n); again.Refused {
				t.Fatalf("%v: a cost of %v, back after %v, is told to wait %v", limits, n, result.Wait, again.Wait)
			}
		}
	}
}

func TestACostAboveTheCapacityByRoundingTakesAllOfItInRedis(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	ctx := context.Background()
	const capacity = 0.7
	b, err := outbound.NewSharedBucket(redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), "above", outbound.Limit{Capacity: capacity, LeakRate: 0.001})
	require.NoError(t, err)
	level := func() float64 {
		state, err := b.State(ctx)
		require.NoError(t, err)
		return state.Level
	}
	above := math.Nextafter(math.Nextafter(capacity, 1), 1)
	_, err = b.Acquire(ctx, outbound.Cost{capacity * (1 + 0.51e-9)})
	require.ErrorIs(t, err, outbound.ErrTooLarge)
	p, err := b.Acquire(ctx, outbound.Cost{above})
	require.NoError(t, err)
	require.Equal(t, capacity, level())
	p.Settle(outbound.Cost{capacity * (1 + 0.49e-9)})
	require.Equal(t, capacity, level(), "after it was settled to what it was")
}
