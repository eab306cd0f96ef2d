package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// Of the limits that were in force the key keeps eight, of whatever kind, as the arithmetic does.
func TestAKeyForgetsTheNamesThatLimitsHad(t *testing.T) {
	t.Parallel()
	for kind, limit := range map[string]outbound.Limit{
		"leaky": {Capacity: 100, LeakRate: 1}, "window": outbound.Window(100, time.Minute),
		"fixed": outbound.FixedWindow(100, time.Minute), "calendar": outbound.Daily(100, time.UTC),
	} {
		s := newMini(t)
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
		memory := leak.NewMemory()
		shared, local := outbound.Must(outbound.NewSharedBucket(store, "key", limit)), outbound.Must(outbound.NewSharedBucket(memory, "key", limit))
		for i := range 30 {
			for _, b := range []*outbound.Bucket{shared, local} {
				require.NoError(t, b.SetLimits(t.Context(), limit.Of(0, fmt.Sprint("name ", i))))
				for range 2 { // the log has two entries then
					_, err := b.Acquire(t.Context(), outbound.Cost{1})
					require.NoError(t, err, kind)
					s.forward(2 * time.Second)
				}
			}
		}
		fields, err := s.rdb.HGetAll(t.Context(), store.Key("key")).Result()
		require.NoError(t, err)
		names := map[string]int{}
		for f := range fields {
			names[f[:1]]++
		}
		require.Equal(t, 9, names["l"], "%s: %v", kind, names)
		require.LessOrEqual(t, names["g"], 9, "%s: %v", kind, names)
		got, err := store.Update(t.Context(), "key", &leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1}}})
		require.NoError(t, err)
		want, err := memory.Update(t.Context(), "key", &leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1}}})
		require.NoError(t, err)
		require.Equal(t, want.Version, got.Version, kind)
	}
}
