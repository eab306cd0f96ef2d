package engine_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A reply does not tell how a window is filled. So of callers who go together, each whose wait
// the reply does not tell is asked again, and hears its own.
func TestARefusalByAWindowTellsEachCallerItsOwnWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &hanging{Carrier: &porter{newShelf()}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Minute})
		ask := func(n float64) store.Reply {
			r, err := e.Update(context.Background(), "key", &store.Op{
				Limits: []store.Limit{{Kind: store.Window, Capacity: 10, Rate: 1, Window: 10 * time.Second}}, Action: store.Book, Costs: []store.Units{{n}},
			})
			require.NoError(t, err)
			return r
		}
		require.False(t, ask(2).Refused)
		time.Sleep(3 * time.Second)
		require.False(t, ask(3).Refused)
		time.Sleep(3 * time.Second)
		require.False(t, ask(5).Refused)
		free := h.hang()
		var wg sync.WaitGroup
		wg.Go(func() { require.True(t, ask(9).Refused) }) // goes alone
		synctest.Wait()
		// Who asks for more than a refused call before it is told that call's wait, which is less.
		for _, c := range []struct{ units, wait float64 }{{10, 10}, {4, 7}, {1, 4}} {
			wg.Go(func() {
				r := ask(c.units)
				require.True(t, r.Refused)
				require.InDelta(t, c.wait, r.Wait.Seconds(), 0.01, "%v units", c.units)
			})
			synctest.Wait()
		}
		free()
		wg.Wait()
	})
}
