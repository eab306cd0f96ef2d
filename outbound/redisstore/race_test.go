package redisstore

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reports from a process far from the server come through next to eight near ones that book as fast
// as they can, whether the script carries them out or a swap does.
func TestStore_ReportsComeThroughNextToFastProcesses(t *testing.T) {
	reports := 25
	if os.Getenv("DRIPFEED_LONG") != "" {
		reports = 500
	}
	limits := []store.Limit{{Name: "a", Capacity: 1e9, Rate: 1e6}}
	for _, kind := range []store.ReportKind{store.Refused, store.Paused} {
		server := redistest.Start(t)
		line := redistest.NewProxy(t, server.Addr())
		line.Set(redistest.Faults{Delay: 10 * time.Millisecond, DelayRequests: 10 * time.Millisecond})
		far := open(t, line.Addr(), Config{Timeout: 10 * time.Second})
		ctx := context.Background()
		var over atomic.Bool
		var steps atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			near := open(t, server.Addr(), Config{Timeout: 10 * time.Second})
			all.Go(func() {
				for !over.Load() {
					if _, err := near.Update(ctx, "k", &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}}); err != nil {
						t.Error(err)
						return
					}
					steps.Add(1)
				}
			})
		}
		began := time.Now()
		var took []time.Duration
		for range reports {
			at := time.Now()
			_, err := far.Update(ctx, "k", &store.Op{Limits: limits, Reports: []store.Report{{Kind: kind, Wait: 1, MaxWait: 1, Epoch: -1}}})
			require.NoError(t, err)
			took = append(took, time.Since(at))
		}
		rate := float64(steps.Load()) / time.Since(began).Seconds()
		over.Store(true)
		all.Wait()
		slices.Sort(took)
		t.Logf("kind %d: %d reports, median %v, p99 %v; the near processes %.0f steps a second", kind, reports, took[reports/2], took[reports*99/100], rate)
		require.Positive(t, rate)
	}
}
