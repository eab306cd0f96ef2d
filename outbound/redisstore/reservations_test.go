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

// What one process reserves, another knows by its marks, as package jobs needs it.
func TestReservations_AreKnownToOtherProcesses(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]redis.UniversalClient{"server": redistest.Shared(t).Client(t), "cluster": redistest.SharedCluster(t).Client(t)} {
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprint("reservations:", rand.Uint64())
			worker := func() *outbound.Bucket {
				store := redisstore.New(rdb, redisstore.Config{Timeout: 10 * time.Second, PlainKeys: true})
				return outbound.Must(outbound.NewSharedBucket(store, key, outbound.PerSecond(10), outbound.Window(1000, time.Hour)))
			}
			k := outbound.Booking{Wait: time.Hour, Horizon: time.Hour}
			for range 100 {
				k.Costs = append(k.Costs, outbound.Cost{1})
			}
			require.NoError(t, worker().Reservations().Book(t.Context(), &k))
			require.Len(t, k.Tickets, 100)

			var heard outbound.Booking
			require.NoError(t, worker().Reservations().Book(t.Context(), &heard))
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
			require.Zero(t, state.Level) // the bucket itself has admitted nothing

			require.NoError(t, worker().Reservations().Resume(t.Context()))
			require.NoError(t, worker().Reservations().Book(t.Context(), &heard))
			_, ok := heard.Clock.Place(k.Tickets[50].Mark())
			require.False(t, ok)
		})
	}
}
