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

// named are limits of ten of each kind, which take long to be empty.
var named = map[string]outbound.Limit{
	"leaky": {Capacity: 10, LeakRate: 10. / 3600}, "window": outbound.Window(10, time.Hour),
	"fixed": outbound.FixedWindow(10, time.Hour), "calendar": outbound.Daily(10, time.UTC),
}

// A name that comes again goes on from where it was, whatever names were in force meanwhile. Of
// those with nothing in them the key keeps eight, as the arithmetic does.
func TestAKeyForgetsTheNamesThatLimitsHadWhenTheyAreEmpty(t *testing.T) {
	t.Parallel()
	for server, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		for kind, limit := range named {
			if raced && server == "miniredis" { // which is slow then
				continue
			}
			t.Run(server+"/"+kind, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
				b := outbound.Must(outbound.NewSharedBucket(store, "key", limit))
				set := func(name any) (n int) {
					require.NoError(t, b.SetLimits(t.Context(), limit.Of(0, fmt.Sprint("name ", name))))
					store.Forget("key")
					for n < 20 {
						if _, err := b.Acquire(t.Context(), outbound.Cost{1}); err != nil {
							require.ErrorIs(t, err, outbound.ErrThrottled)
							return n
						}
						n++
					}
					return n
				}
				names := func() map[string]int {
					fields, err := s.rdb.HGetAll(t.Context(), store.Key("key")).Result()
					require.NoError(t, err)
					names := map[string]int{}
					for f := range fields {
						names[f[:1]]++
					}
					return names
				}
				for i := range 20 {
					require.Equal(t, 10, set(i), i)
				}
				for i := range 20 {
					require.Zero(t, set(i), i)
				}
				require.Equal(t, 20, names()["l"])
				s.forward(49 * time.Hour)
				require.Equal(t, 10, set("last"))
				require.LessOrEqual(t, names()["l"], 9)
				require.LessOrEqual(t, names()["g"], 9)
			})
		}
	}
}

// Where names are full and others empty, the script forgets those that the arithmetic forgets: so
// both count the same versions.
func TestTheScriptForgetsAsManyNamesAsTheArithmetic(t *testing.T) {
	t.Parallel()
	for kind, limit := range named {
		if raced && kind != "window" {
			continue
		}
		s := newMini(t)
		store, memory := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), leak.NewMemory()
		shared, local := outbound.Must(outbound.NewSharedBucket(store, "key", limit)), outbound.Must(outbound.NewSharedBucket(memory, "key", limit))
		for i := range 90 {
			for _, b := range []*outbound.Bucket{shared, local} {
				require.NoError(t, b.SetLimits(t.Context(), limit.Of(0, fmt.Sprint("name ", i))))
				if i%3 > 0 {
					_, err := b.Acquire(t.Context(), outbound.Cost{2})
					require.NoError(t, err, kind)
				}
			}
			s.forward(time.Millisecond)
		}
		got, err := store.Update(t.Context(), "key", &leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1}}})
		require.NoError(t, err)
		want, err := memory.Update(t.Context(), "key", &leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1}}})
		require.NoError(t, err)
		require.Equal(t, want.Version, got.Version, kind)
	}
}
