package redisstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reports from a process whose round trip takes 20 ms come through, one each 20 ms, next to eight
// near processes that book as fast as they can.
func TestStore_ReportsComeThroughNextToFastProcesses(t *testing.T) {
	const reports = 25
	limits := []store.Limit{{Name: "a", Capacity: 1e9, Rate: 1e6}}
	for name, kind := range map[string]store.ReportKind{"refused": store.Refused, "held": store.Held, "paused": store.Paused} {
		server := redistest.Start(t)
		line := redistest.NewProxy(t, server.Addr())
		line.Set(redistest.Faults{Delay: 10 * time.Millisecond, DelayRequests: 10 * time.Millisecond})
		far := open(t, line.Addr(), Config{Timeout: 10 * time.Second})
		ctx := context.Background()
		var over atomic.Bool
		var steps atomic.Int64
		var near, all sync.WaitGroup
		for range 8 {
			s := open(t, server.Addr(), Config{Timeout: 10 * time.Second})
			near.Go(func() {
				for !over.Load() {
					r, err := s.Update(ctx, "k", &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}, Wait: time.Minute})
					if err != nil || len(r.Charges) != 1 {
						t.Errorf("%d charges, error %v", len(r.Charges), err)
						return
					}
					steps.Add(1)
				}
			})
		}
		took, began, n := make([]time.Duration, reports), time.Now(), steps.Load()
		for i := range took {
			time.Sleep(time.Until(began.Add(time.Duration(i) * 20 * time.Millisecond)))
			all.Go(func() {
				at := time.Now()
				report := store.Report{Kind: kind, Wait: 1, MaxWait: 1, Epoch: -1}
				if _, err := far.Update(ctx, "k", &store.Op{Limits: limits, Reports: []store.Report{report}}); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(at)
			})
		}
		all.Wait()
		over.Store(true)
		near.Wait()
		require.Positive(t, steps.Load()-n)
		t.Logf("%s: at most %v", name, slices.Max(took))
	}
}
