package redisstore

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

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
