package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// Ten processes that use a day's quota steadily foresee on a server what one process does in memory: when it is used
// up, within a tenth of the time left, each once, at 80 %.
func TestStore_FleetForeseesAUsedUpQuota(t *testing.T) {
	const processes, quota, each = 10, 600, 90 * time.Second // 15 hours
	server := redistest.StartWithClock(t)
	var mu sync.Mutex
	var said [processes][]time.Duration // from the beginning, when it is used up
	var buckets []*outbound.Bucket
	passed := time.Duration(0)
	for i := range processes {
		b, err := outbound.NewSharedBucket(open(t, server.Addr(), Config{}), "fleet", outbound.FixedWindow(quota, 24*time.Hour))
		require.NoError(t, err)
		buckets = append(buckets, b)
		t.Cleanup(b.Observe(func(e outbound.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind == outbound.EventRunsOut {
				said[i] = append(said[i], passed+e.UsedUpIn)
			}
		}))
	}
	ctx := context.Background()
	for i := range quota - 60 {
		mu.Lock()
		passed = time.Duration(i) * each
		mu.Unlock()
		server.SetClock(t, passed)
		p, err := buckets[i%processes].Acquire(ctx, outbound.Cost{1})
		require.NoError(t, err)
		p.Done()
		for _, b := range buckets { // as a scrape does
			if i%processes == 0 {
				_, err := b.Explain(ctx, outbound.Cost{1})
				require.NoError(t, err)
			}
		}
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for i := range said {
			if len(said[i]) == 0 {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond, "%v", &said)
	for i := range said {
		require.Len(t, said[i], 1)
		require.InDelta(t, (quota * each).Hours(), said[i][0].Hours(), 0.3, "process %d", i)
	}
}
