package rowstore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/next/rowstore"
)

// Stats count the trip that found the row written by another worker, too.
func TestStatsCountTheTripsOfRaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		one, other := rowstore.New(rows, rowstore.Config{}), rowstore.New(rows, rowstore.Config{})
		const rounds = 10
		for range rounds { // in turn
			for _, s := range []*rowstore.Store{one, other} {
				_, err := s.Update(context.Background(), "key", calls(1))
				require.NoError(t, err)
			}
		}
		is := one.Stats()
		require.Equal(t, uint64(rounds), is.Answered)
		require.Equal(t, uint64(2*rounds), is.Trips.Count)
		require.Zero(t, is.Failed+is.Cancelled+is.Remembered+is.Repeats)
		require.Nil(t, is.Outages)
	})
}
