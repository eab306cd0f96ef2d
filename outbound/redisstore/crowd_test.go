package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// More workers use a key than it has room for, and each new caller is a new worker. One in
// 256 makes room, and the others find it.
func TestACrowdOfWorkersMakesRoomOnceForMany(t *testing.T) {
	t.Parallel()
	const workers, rounds = 1300, 2
	rdb := redistest.Shared(t).Client(t)
	name, key := fmt.Sprint("crowd ", rand.Uint64()), ""
	var stores []*redisstore.Store
	var buckets []*outbound.Bucket
	for range workers {
		store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
		key, stores = store.Key(name), append(stores, store)
		buckets = append(buckets, outbound.Must(outbound.NewSharedBucket(store, name, outbound.Limit{Capacity: 1e6, LeakRate: 1000})))
	}
	var was int64
	sweeps := 0
	for i := range rounds * workers {
		there, err := rdb.HExists(t.Context(), key, stores[i%workers].Worker()).Result()
		require.NoError(t, err)
		_, err = buckets[i%workers].Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		n, err := rdb.HLen(t.Context(), key).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, n, int64(1024))
		if !there && n <= was { // the key has dropped others
			sweeps++
		}
		was = n
	}
	require.Positive(t, sweeps)
	require.LessOrEqual(t, sweeps, rounds*workers/256)
	fields, err := rdb.HKeys(t.Context(), key).Result()
	require.NoError(t, err)
	require.Greater(t, len(fields), 768)
}
