package redisstore

import (
	"context"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Three processes have at most six calls in flight on a server. One is cut off, and the others have
// its slots after its lease.
func TestStore_InFlightOfAProcessThatIsCutOff(t *testing.T) {
	const slots, lease = 6, 3 * time.Second
	server := redistest.Start(t)
	var lines [3]*redistest.Proxy
	var stores []store.Store
	for i := range lines {
		lines[i] = redistest.NewProxy(t, server.Addr())
		stores = append(stores, open(t, lines[i].Addr(), Config{Timeout: time.Second}))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.Full(t)
	lines[2].Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
	time.Sleep(lease/2 + 100*time.Millisecond) // by then it starts no calls any more
	fleet.Full(t)
	fleet.Check(t)
}

// The server loses all data: the processes report what they hold, and there are never more calls.
func TestStore_InFlightAfterDataLoss(t *testing.T) {
	const slots, lease = 6, 6 * time.Second // nothing is granted for a third of it, and each reports within a sixth
	server := redistest.Start(t)
	var stores []store.Store
	for range 3 {
		stores = append(stores, open(t, server.Addr(), Config{}))
	}
	fleet := rollouttest.StartCallers(t, slots, lease, stores)
	fleet.AllGoOn(t, 10)
	require.NoError(t, server.Client(t).FlushAll(context.Background()).Err())
	fleet.AllGoOn(t, 40)
	fleet.Check(t)
}

// Old and new processes run next to each other, in long runs for a minute.
func TestStore_RolloutOfLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	f := &rollouttest.Fleet{For: 2 * time.Second, Tenants: 100, Open: func(t testing.TB) store.Store {
		return open(t, server.Addr(), Config{Timeout: time.Minute})
	}}
	if os.Getenv("DRIPFEED_LONG") != "" {
		f.For, f.Tenants = time.Minute, 1_000
	}
	f.Test(t)
}

// Three processes change the limits of a key between each other's calls.
func TestStore_ChangesOfLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	n := 100
	if os.Getenv("DRIPFEED_LONG") != "" {
		n = 3_000
	}
	rdb := server.Client(t)
	f := &rollouttest.Fleet{Open: func(testing.TB) store.Store { return New(rdb, Config{Timeout: time.Minute}) }}
	f.PlayFor(t, n)
}

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

// A key of one limit takes at most 500 bytes of the server with one process, 1,400 with ten, and
// 120,000 however many there are, also while calls wait and succeed.
func TestStore_KeyIsSmall(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	ctx := context.Background()
	limits := []store.Limit{{Name: "100 per 1s", Unnamed: true, Window: time.Second, N: 100, Capacity: 2. / 3, Rate: 99.4}}
	for processes, most := range map[int]int64{1: 500, 10: 1_400, 1_100: 120_000} {
		rdb.FlushDB(ctx)
		s := make([]*Store, processes)
		for i := range s {
			s[i] = New(rdb, Config{Timeout: time.Minute})
		}
		for range 3 {
			for _, s := range s {
				r, err := s.Update(ctx, "k", &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{0.5}}, Wait: time.Hour, Claim: math.Inf(1), Weight: 3})
				require.NoError(t, err)
				_, err = s.Update(ctx, "k", &store.Op{Limits: limits, Number: 1, Reports: []store.Report{{Kind: store.Succeeded, Epoch: r.State.Epoch}}})
				require.NoError(t, err)
			}
		}
		size := rdb.MemoryUsage(ctx, s[0].Key("k"), 0).Val()
		t.Logf("%d processes: %d bytes", processes, size)
		require.LessOrEqual(t, size, most)
	}
}
