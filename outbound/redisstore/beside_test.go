package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// What one worker books beside a bucket, another knows by its marks, as package jobs wants it.
func TestPlacesBesideABucketAreKnownToOtherWorkers(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]redis.UniversalClient{"server": redistest.Shared(t).Client(t), "cluster": redistest.SharedCluster(t).Client(t)} {
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprint("beside:", rand.Uint64())
			worker := func() *outbound.Bucket {
				store := redisstore.New(rdb, redisstore.Config{Timeout: 10 * time.Second, PlainKeys: true})
				return outbound.Must(outbound.NewSharedBucket(store, key, outbound.PerSecond(10), outbound.Window(1000, time.Hour)))
			}
			k := outbound.Booking{Wait: time.Hour, Horizon: time.Hour}
			for range 100 {
				k.Costs = append(k.Costs, outbound.Cost{1})
			}
			require.NoError(t, worker().Beside("line").Book(t.Context(), &k))
			require.Len(t, k.Tickets, 100)

			var heard outbound.Booking
			require.NoError(t, worker().Beside("line").Book(t.Context(), &heard))
			for i, p := range k.Tickets {
				at, ok := heard.Clock.Place(p.Mark())
				require.True(t, ok, "place %d: %s", i, p.Mark())
				// They heard the clock in two trips, and each knows its time as well as its trip was short.
				require.WithinDuration(t, k.Clock.Due(p), at, time.Second)
				if i > 0 {
					before, _ := heard.Clock.Place(k.Tickets[i-1].Mark())
					require.InDelta(t, 101*time.Millisecond, at.Sub(before), float64(time.Millisecond))
				}
			}
			state, err := worker().State(t.Context())
			require.NoError(t, err)
			require.Zero(t, state.Level) // the bucket itself has sold nothing

			require.NoError(t, worker().Beside("line").Resume(t.Context()))
			require.NoError(t, worker().Beside("line").Book(t.Context(), &heard))
			_, ok := heard.Clock.Place(k.Tickets[50].Mark())
			require.False(t, ok)
		})
	}
}
