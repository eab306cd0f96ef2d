package engine_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A reply does not tell how a window is filled. So of callers who go together, each whose wait
// the reply does not tell is asked again, and hears its own.
func TestARefusalByAWindowTellsEachCallerItsOwnWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &hanging{Carrier: &porter{newShelf()}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Minute})
		ask := func(n float64) leak.Reply {
			r, err := e.Update(context.Background(), "key", &leak.Op{
				Limits: []leak.Limit{{Kind: leak.Moving, Capacity: 10, Rate: 1, Window: 10 * time.Second}}, Action: leak.Book, Costs: []leak.Units{{n}},
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
		for n, wait := range map[float64]time.Duration{10: 10 * time.Second, 4: 7 * time.Second, 1: 4 * time.Second} {
			wg.Go(func() {
				r := ask(n)
				require.True(t, r.Refused)
				require.InDelta(t, wait.Seconds(), r.Wait.Seconds(), 0.01, "%v units", n)
			})
			synctest.Wait() // so that the largest need not be first
		}
		free()
		wg.Wait()
	})
}
