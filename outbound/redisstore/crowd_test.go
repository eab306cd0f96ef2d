package redisstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// More workers use a key than it has room for: each that comes is new there. One in 256 makes
// room, and the others find it.
func TestACrowdOfWorkersMakesRoomOnceForMany(t *testing.T) {
	t.Parallel()
	const workers, rounds = 1300, 2
	s := newMini(t)
	key := ""
	var stores []*redisstore.Store
	var buckets []*outbound.Bucket
	for range workers {
		store := redisstore.New(s.rdb, redisstore.Config{})
		key, stores = store.Key("crowd"), append(stores, store)
		buckets = append(buckets, outbound.Must(outbound.NewSharedBucket(store, "crowd", outbound.Limit{Capacity: 1e6, LeakRate: 1000})))
	}
	var was int64
	sweeps := 0
	for i := range rounds * workers {
		there, err := s.rdb.HExists(t.Context(), key, stores[i%workers].Worker()).Result()
		require.NoError(t, err)
		_, err = buckets[i%workers].Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		n, err := s.rdb.HLen(t.Context(), key).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, n, int64(1024))
		if !there && n <= was { // others have gone
			sweeps++
		}
		was = n
	}
	require.Positive(t, sweeps)
	require.LessOrEqual(t, sweeps, rounds*workers/256)
	fields, err := s.rdb.HKeys(t.Context(), key).Result()
	require.NoError(t, err)
	require.Greater(t, len(fields), 768)
}
