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

// Reports from a process whose round trip takes 20 ms come through, one each 20 ms, next to eight
// near processes that book as fast as they can. A long run says how fast: the script carries the
// refusals out itself, so that 99 of 100 take at most 100 ms on a machine that is not busy, and the
// near processes keep nine tenths of their steps. Pauses go by swap.
func TestStore_ReportsComeThroughNextToFastProcesses(t *testing.T) {
	long := os.Getenv("DRIPFEED_LONG") != ""
	reports := 25
	if long {
		reports = 500
	}
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
		pace := func(d time.Duration) float64 {
			n, began := steps.Load(), time.Now()
			time.Sleep(d)
			return float64(steps.Load()-n) / time.Since(began).Seconds()
		}
		alone := 0.
		if long {
			pace(time.Second)
			alone = pace(5 * time.Second)
		}
		took, looks, began, n := make([]time.Duration, reports), make([]time.Duration, reports), time.Now(), steps.Load()
		step := func(took *time.Duration, key string, reports ...store.Report) {
			at := time.Now()
			if _, err := far.Update(ctx, key, &store.Op{Limits: limits, Reports: reports}); err != nil {
				t.Error(err)
			}
			*took = time.Since(at)
		}
		for i := range took {
			time.Sleep(time.Until(began.Add(time.Duration(i) * 20 * time.Millisecond)))
			all.Go(func() { step(&took[i], "k", store.Report{Kind: kind, Wait: 1, MaxWait: 1, Epoch: -1}) })
			all.Go(func() { step(&looks[i], "another") }) // which says how busy the machine is
		}
		all.Wait()
		kept := float64(steps.Load()-n) / time.Since(began).Seconds()
		if long {
			alone = (alone + pace(5*time.Second)) / 2 // the machine's other work may have changed
		}
		over.Store(true)
		near.Wait()
		require.Positive(t, steps.Load()-n)
		slices.Sort(took)
		slices.Sort(looks)
		p99 := reports * 99 / 100
		if t.Logf("%s: %d reports, median %v, p99 %v; looks %v, %v", name, reports, took[reports/2], took[p99], looks[reports/2], looks[p99]); !long {
			continue
		}
		t.Logf("%s: the near processes make %.0f steps a second alone, and keep %.2f", name, alone, kept/alone)
		if kind != store.Paused {
			require.LessOrEqual(t, took[p99], max(100*time.Millisecond, 2*looks[p99]), name)
			require.GreaterOrEqual(t, kept, 0.9*alone, name)
		}
	}
}
