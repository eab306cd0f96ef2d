package pgtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
)

// What one process reserves, another knows by its tickets, as package jobs needs it.
func TestReservations_AreKnownToOtherProcesses(t *testing.T) {
	x := newTables(t, theServer(t))
	worker := func() *outbound.Bucket {
		return outbound.Must(outbound.NewSharedBucket(x.over(x.open(t, "", nil)), "key", outbound.PerSecond(10)))
	}
	k := outbound.BookRequest{Costs: []outbound.Cost{{1}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	require.NoError(t, worker().Reservations().Book(t.Context(), &k))
	require.Len(t, k.Tickets, 3)
	var heard outbound.BookRequest
	require.NoError(t, worker().Reservations().Book(t.Context(), &heard))
	for _, p := range k.Tickets {
		at, ok := heard.Clock.DueText(p.String())
		require.True(t, ok, p.String())
		require.WithinDuration(t, k.Clock.Due(p), at, time.Second)
	}
	state, err := worker().State(t.Context())
	require.NoError(t, err)
	require.Zero(t, state.Level) // the bucket itself has admitted nothing
}
