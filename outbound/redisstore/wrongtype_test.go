package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// others are the types that a key may have besides ours, each with the command
// that makes it.
var others = map[string][]any{
	"string": {"SET", "", "hello"},
	"list":   {"RPUSH", "", "hello"},
	"set":    {"SADD", "", "hello"},
	"zset":   {"ZADD", "", 1, "hello"},
	"stream": {"XADD", "", "*", "a", "b"},
}

// firsts are the operations that may be the first to find such a key.
var firsts = map[string]func(t *testing.T, b *outbound.Bucket){
	"Acquire": func(t *testing.T, b *outbound.Bucket) {
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.ErrorIs(t, err, outbound.ErrThrottled)
	},
	"State": func(t *testing.T, b *outbound.Bucket) {
		s, err := b.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 10, s.Level, 0.01)
	},
	"Fillup": func(t *testing.T, b *outbound.Bucket) {
		s, err := b.Fillup(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		require.InDelta(t, 10, s.Level, 0.01)
	},
	"Hold":      func(t *testing.T, b *outbound.Bucket) { require.NoError(t, b.Hold(t.Context(), time.Second)) },
	"Resume":    func(t *testing.T, b *outbound.Bucket) { require.NoError(t, b.Resume(t.Context())) },
	"SetLimits": func(t *testing.T, b *outbound.Bucket) { require.NoError(t, b.SetLimits(t.Context(), reset)) },
}

// reset is a limit that empties only long after a test.
var reset = outbound.Limit{Capacity: 10, LeakRate: 1e-6}

func TestAKeyOfAnotherTypeIsGarbage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, _ string, rdb redis.UniversalClient) { otherTypes(t, rdb) })
	t.Run("cluster", func(t *testing.T) { otherTypes(t, redistest.SharedCluster(t).Client(t)) })
}

func otherTypes(t *testing.T, rdb redis.UniversalClient) {
	for kind, command := range others {
		for name, first := range firsts {
			t.Run(kind+" and "+name, func(t *testing.T) {
				t.Parallel()
				var told events
				s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
				b := outbound.Must(outbound.NewSharedBucket(punctual(s), fmt.Sprint("type:", rand.Uint64()), reset))
				used, err := b.Acquire(t.Context(), outbound.Cost{3})
				require.NoError(t, err)
				command := append([]any{}, command...)
				command[1] = s.Key(b.Key())
				require.NoError(t, rdb.Del(t.Context(), s.Key(b.Key())).Err())
				require.NoError(t, rdb.Do(t.Context(), command...).Err())

				first(t, b)
				require.Equal(t, b.Key(), told.await(t, leak.EventCorrupt).Key)
				used.Settle(outbound.Cost{}) // charges from before do not come back
				if name != "Resume" {
					_, err = b.Acquire(t.Context(), outbound.Cost{1})
					require.ErrorIs(t, err, outbound.ErrThrottled)
				}
				require.NoError(t, b.SetLimits(t.Context(), outbound.Limit{Capacity: 20, LeakRate: 1e-6}))
				require.NoError(t, b.Resume(t.Context()))
				_, err = b.Acquire(t.Context(), outbound.Cost{10})
				require.NoError(t, err)
				require.Len(t, told.of(leak.EventCorrupt), 1)
			})
		}
	}
}

func TestKeysOfAnotherTypeSpoilNoPipeline(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	var told events
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
	const keys = 40
	var buckets []*outbound.Bucket
	for i := range keys {
		b := outbound.Must(outbound.NewSharedBucket(s, fmt.Sprint("type:", rand.Uint64()), reset))
		buckets = append(buckets, b)
		if i%2 == 0 {
			require.NoError(t, rdb.Set(t.Context(), s.Key(b.Key()), "hello", 0).Err())
		}
	}
	errs := make([]error, keys)
	many(keys, keys, func(_, i int) {
		_, errs[i-1] = buckets[i-1].Acquire(t.Context(), outbound.Cost{1})
	})
	for i, err := range errs {
		if i%2 == 0 {
			require.ErrorIs(t, err, outbound.ErrThrottled)
		} else {
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool { return len(told.of(leak.EventCorrupt)) == keys/2 }, time.Minute, time.Millisecond)
}
