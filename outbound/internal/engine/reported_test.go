package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// brief is a carrier to a server that goes away after two trips.
type brief struct {
	*porter
	sends atomic.Int32
}

func (b *brief) Send(ctx context.Context, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	if b.sends.Add(1) <= 2 {
		b.porter.Send(ctx, todo)
		return
	}
	for i := range todo {
		todo[i].Err = errLost
	}
}

// A trip has delivered a call's reports, and refused the call before it. The call itself goes with the next trip, which
// fails: its reports are not lost, and its caller hears that they need not be sent again.
func TestReportsThatAnEarlierTripHasDeliveredAreNotLost(t *testing.T) {
	for name, patience := range map[string]time.Duration{"the trip fails": time.Minute, "its caller goes": time.Second / 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var told []store.StoreEventKind
				e := engine.New(engine.Config{
					Carrier: &brief{porter: &porter{newShelf()}}, Timeout: time.Second,
					Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) },
				})
				limits := []store.Limit{{Capacity: 10, Rate: 1e-6}}
				each(3, func(i int) {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond) // the others gather during the first one's trip
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					op := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{[]float64{8, 3, 1}[i]}}}
					if i == 2 {
						op.Reports = settle(&store.Charge{N: store.Units{1}}, 1)
					}
					r, err := e.Update(ctx, "key", op)
					switch {
					case i < 2:
						require.NoError(t, err)
						require.Equal(t, i == 1, r.Refused)
					case patience < time.Second:
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.True(t, r.Reported)
					default:
						require.ErrorIs(t, err, store.ErrUnavailable)
						require.True(t, r.Reported)
					}
				})
				time.Sleep(time.Second)
				synctest.Wait()
				require.NotContains(t, told, store.EventLost)
			})
		})
	}
}
