package redisstore_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// A text of any length in any field is garbage like all else: the bucket is full, it is told, and
// a Resume opens it.
func TestGarbageOfAnyLengthNeitherOpensNorShutsABucket(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			limits := map[string][]outbound.Limit{
				"leaky":    {{Capacity: 10, LeakRate: 1}},
				"window":   {outbound.Window(10, time.Minute)},
				"fixed":    {outbound.FixedWindow(10, time.Minute)},
				"calendar": {outbound.Daily(10, time.UTC)},
			}
			for name, limits := range limits {
				for _, field := range []string{"s", "c", "r", "v", "w", "l0"} {
					if name != "leaky" && field != "l0" {
						continue
					}
					for n := range 200 {
						if n > 70 && n%8 > 0 || kind == "miniredis" && n%8 > 1 || raced && n%8 > 0 && n != 55 {
							continue
						}
						var told events
						store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
						b := outbound.Must(outbound.NewSharedBucket(store, fmt.Sprint(name, field, n), limits...))
						p, err := b.Acquire(t.Context(), outbound.Cost{1})
						require.NoError(t, err)
						if field == "r" || field == "c" { // else the key has neither
							p.Refused(time.Second)
							_, err = b.State(t.Context())
							require.NoError(t, err)
						}
						s.forward(2 * time.Second)
						store.Forget(b.Key())
						_, err = b.Acquire(t.Context(), outbound.Cost{1})
						require.NoError(t, err)
						at, value := field, strings.Repeat("x", n)
						if field == "w" {
							at = store.Worker()
							was, err := s.rdb.HGet(t.Context(), store.Key(b.Key()), at).Result()
							require.NoError(t, err)
							record := unpack(was)
							require.Positive(t, math.Mod(record[1], 8192)-512, "the calls on record")
							record[0]++ // the script takes the next request for one that it has carried out
							value = (packed(record...) + value)[:n]
						}
						require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), at, value).Err())
						what := fmt.Sprintf("%s: %d bytes in %s", name, n, field)
						_, err = b.Acquire(t.Context(), outbound.Cost{1})
						if field == "w" { // a record may be gone at any time
							require.NoError(t, err, what)
						} else {
							require.Error(t, err, what)
							require.NotContains(t, err.Error(), "script", what)
							require.Eventually(t, func() bool { return len(told.of(leak.EventCorrupt)) > 0 }, time.Minute, time.Millisecond, what)
							_, err = b.Acquire(t.Context(), outbound.Cost{9})
							require.ErrorIs(t, err, outbound.ErrThrottled, what)
						}
						require.NoError(t, b.Resume(t.Context()), what)
						s.forward(10 * time.Second)
						store.Forget(b.Key())
						_, err = b.State(t.Context())
						require.NoError(t, err, what)
					}
				}
			}
		})
	}
}
