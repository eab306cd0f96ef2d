package redisstore_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestLimitsThatNobodyHasSetAreGarbage(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		s := start(t)
		for i, v := range []string{
			`5 [{"Capacity":10,"Rate":1,"Window":-5}]`, `5 [{"Capacity":10,"Rate":1,"Unit":-1}]`,
			`5 [{"Capacity":1e-9,"Rate":1000}]`, `5 [{"Capacity":10,"Rate":1,"Unit":1.0}]`, `5 [{"Capacity":10`, `0 [{"Capacity":1000,"Rate":1}]`, `x`,
		} {
			var told events
			store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
			b, _ := used(t, s, store, fmt.Sprint("limits:", i))
			require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), "v", v).Err())
			// One call may find the garbage. It is not admitted, and later calls are
			// refused.
			_, err := b.Acquire(t.Context(), outbound.Cost{1})
			require.Error(t, err, "%s: %s", kind, v)
			_, err = b.Acquire(t.Context(), outbound.Cost{1})
			require.ErrorIs(t, err, outbound.ErrThrottled, "%s: %s", kind, v)
			told.await(t, leak.EventCorrupt)
			s.forward(10*time.Second + time.Millisecond)
			store.Forget(b.Key())
			_, err = b.Acquire(t.Context(), outbound.Cost{10})
			require.NoError(t, err, "%s: %s", kind, v)
		}
	}
}

func TestARecordAheadOfItsWorkerIsLeftBehind(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	var told events
	store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
	b, fields := used(t, s, store, "ahead")
	worker := store.Worker()
	record := binary.LittleEndian.AppendUint64(nil, math.Float64bits(9e15))
	require.NoError(t, s.rdb.HSet(t.Context(), store.Key("ahead"), worker, string(record)+fields[worker][8:]).Err())
	_, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.Error(t, err)
	told.await(t, leak.EventCorrupt)
	_, err = b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	require.NotEqual(t, worker, store.Worker())
}

// Garbage beside a record that has the request already, or a later one, is garbage: the bucket is
// full, and not open.
func TestGarbageBesideARecordOpensNoBucket(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		s := start(t)
		for _, limit := range []outbound.Limit{{Capacity: 10, LeakRate: 1}, outbound.Window(10, time.Minute), outbound.Daily(10, time.UTC)} {
			for _, ahead := range []float64{0, 1, 2, 3, 100} {
				for _, set := range []bool{false, true} {
					stores := twoStores(s.rdb)
					key, what := fmt.Sprint("beside:", limit, ahead, set), fmt.Sprintf("%s: %v, %v ahead, set %v", kind, limit, ahead, set)
					mine := outbound.Must(outbound.NewSharedBucket(stores[0], key, limit))
					other := outbound.Must(outbound.NewSharedBucket(stores[1], key, limit))
					_, err := mine.Acquire(t.Context(), outbound.Cost{1})
					require.NoError(t, err)
					if set {
						require.NoError(t, other.SetLimits(t.Context(), limit))
					}
					name, worker := stores[0].(*redisstore.Store).Key(key), stores[0].(*redisstore.Store).Worker()
					record, err := s.rdb.HGet(t.Context(), name, worker).Result()
					require.NoError(t, err)
					seq := math.Float64frombits(binary.LittleEndian.Uint64([]byte(record)))
					require.NoError(t, s.rdb.HSet(t.Context(), name, worker, packed(seq+ahead)+record[8:], "s", "garbage").Err())
					_, err = mine.Acquire(t.Context(), outbound.Cost{1})
					require.ErrorIs(t, err, outbound.ErrThrottled, what)
					_, err = other.Acquire(t.Context(), outbound.Cost{1})
					require.ErrorIs(t, err, outbound.ErrThrottled, what)
				}
			}
		}
	}
}

func TestNamesOfLimitsDoNotPushRecordsOut(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	stores := twoStores(s.rdb)
	limit := outbound.Limit{Capacity: 10, LeakRate: 1000}
	var first *outbound.Bucket
	for i := range 1100 {
		b := outbound.Must(outbound.NewSharedBucket(punctual(stores[0]), "names", limit.Of(0, fmt.Sprint("name ", i))))
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		s.forward(time.Second)
		if i == 0 {
			first = b
		}
	}
	fields := func() (n int64) {
		n, err := s.rdb.HLen(t.Context(), stores[0].(*redisstore.Store).Key("names")).Result()
		require.NoError(t, err)
		return n
	}
	require.Greater(t, fields(), int64(1024))
	// Another worker makes room for its record, and keeps the record of the first.
	other := outbound.Must(outbound.NewSharedBucket(punctual(stores[1]), "names", limit.Of(0, "name 0")))
	_, err := other.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	_, err = first.State(t.Context())
	require.NoError(t, err)
	all, err := s.rdb.HGetAll(t.Context(), stores[0].(*redisstore.Store).Key("names")).Result()
	require.NoError(t, err)
	for _, w := range stores {
		require.Contains(t, all, w.(*redisstore.Store).Worker())
	}
	require.Less(t, fields(), int64(10))
}
