package engine_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The trip that finds a loss of data returns nothing of charges from before it: by now other calls
// have their numbers.
func TestEngine_TripThatFindsALossReturnsNoUnitsOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		var told []store.StoreEvent
		e := s.worker(engine.Config{Name: "shelf", Observe: func(ev store.StoreEvent) { told = append(told, ev) }})
		other := s.worker(engine.Config{})
		ask := func(e *engine.Engine, op *store.Op) store.Reply {
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		ask(e, calls(1))
		older := *s.keys["key"]
		older.Stored, older.last = older.Stored.Clone(), maps.Clone(older.last)
		lost := [3]store.Charge{}
		for i := range lost {
			lost[i] = ask(e, calls(1)).Charges[0]
		}
		s.keys["key"] = &older
		for range lost {
			ask(other, calls(1))
		}
		require.InDelta(t, 4, s.level("key"), 0.1)
		op := calls(1)
		op.Reports = []store.Report{{Kind: store.Settled, Charge: &lost[0]}}
		op.Back = []store.Charge{lost[2]}
		require.Len(t, ask(e, op).Charges, 1)
		require.InDelta(t, 5, s.level("key"), 0.1, "the call was booked once, and nothing was returned")
		synctest.Wait()
		require.Len(t, told, 1)
		require.Equal(t, store.EventDataLoss, told[0].Kind)
	})
}
