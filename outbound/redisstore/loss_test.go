package redisstore_test

import (
	"context"
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

// loser is a worker whose server may lose its data.
type loser struct {
	*server
	*outbound.Bucket
	store *redisstore.Store
	told  *events
}

func (l *loser) acquire(t *testing.T) {
	l.store.Forget(l.Key())
	_, err := l.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
}

// worker makes another worker of the same bucket.
func (l *loser) worker(key string, limit outbound.Limit) *loser {
	var told events
	store := redisstore.New(l.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
	return &loser{l.server, outbound.Must(outbound.NewSharedBucket(store, key, limit)), store, &told}
}

// copied returns the key's fields of now, and a function that restores them.
func (l *loser) copied(t *testing.T) (restore func()) {
	name := l.store.Key(l.Key())
	fields, err := l.rdb.HGetAll(t.Context(), name).Result()
	require.NoError(t, err)
	return func() {
		l.lose(t)
		require.NoError(t, l.rdb.HSet(t.Context(), name, fields).Err())
	}
}

func (l *loser) lose(t *testing.T) {
	l.forward(time.Millisecond) // no two lives may begin at the same time
	require.NoError(t, l.rdb.Del(t.Context(), l.store.Key(l.Key())).Err())
}

// quiet checks that no loss was told. It causes an event, which comes after all
// earlier ones.
func (l *loser) quiet(t *testing.T) {
	t.Helper()
	require.NoError(t, l.rdb.Set(t.Context(), l.store.Key(l.Key()), "no bucket", 0).Err())
	l.store.Forget(l.Key())
	_, err := l.State(t.Context())
	require.NoError(t, err)
	l.told.await(t, leak.EventCorrupt)
	require.Empty(t, l.told.of(leak.EventDataLoss))
}

func TestALossOfDataIsToldAndAnExpiredKeyIsNoLoss(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		for name, c := range map[string]struct {
			says string // "": no loss is told
			do   func(t *testing.T, l *loser)
		}{
			"the key is gone": {"has lost this bucket", func(t *testing.T, l *loser) { l.lose(t); l.acquire(t) }},
			"the key is gone, and the first only looks": {"has lost this bucket", func(t *testing.T, l *loser) {
				l.lose(t)
				for range 3 {
					_, err := l.State(t.Context())
					require.NoError(t, err)
				}
				l.acquire(t)
			}},
			"the key is gone, and another comes first": {"has lost this bucket", func(t *testing.T, l *loser) {
				l.lose(t)
				l.worker(l.Key(), tenth).acquire(t)
				l.acquire(t)
			}},
			"the key is gone before it could expire": {"has lost this bucket", func(t *testing.T, l *loser) {
				l.forward(25 * time.Second)
				l.lose(t)
				l.acquire(t)
			}},
			"the key is older": {"has lost the latest calls", func(t *testing.T, l *loser) {
				restore := l.copied(t)
				l.acquire(t)
				restore()
				l.acquire(t)
			}},
			"the limits that were set are gone": {"has lost this bucket", func(t *testing.T, l *loser) {
				require.NoError(t, l.SetLimits(t.Context(), outbound.Limit{Capacity: 3, LeakRate: 1}))
				l.forward(24 * time.Hour)
				l.lose(t)
				l.acquire(t)
			}},
			"nothing": {"", func(t *testing.T, l *loser) { l.acquire(t); l.forward(time.Minute); l.acquire(t) }},
			"the key has expired": {"", func(t *testing.T, l *loser) {
				l.forward(time.Hour)
				l.acquire(t)
			}},
			"the key has expired, with another's calls in between": {"", func(t *testing.T, l *loser) {
				l.forward(time.Hour)
				l.worker(l.Key(), tenth).acquire(t)
				l.acquire(t)
			}},
			"the bucket was resumed": {"", func(t *testing.T, l *loser) {
				require.NoError(t, l.worker(l.Key(), tenth).Resume(t.Context()))
				l.forward(time.Minute)
				l.acquire(t)
			}},
			"the record made room for others": {"", func(t *testing.T, l *loser) {
				require.NoError(t, l.rdb.HDel(t.Context(), l.store.Key(l.Key()), l.store.Worker()).Err())
				l.acquire(t)
			}},
		} {
			t.Run(kind+": "+name, func(t *testing.T) {
				t.Parallel()
				l := (&loser{server: start(t)}).worker(fmt.Sprint("loss:", rand.Uint64()), tenth)
				l.acquire(t)
				l.acquire(t)
				c.do(t, l)
				if c.says == "" {
					l.quiet(t)
					return
				}
				e := l.told.await(t, leak.EventDataLoss)
				require.Equal(t, l.Key(), e.Key)
				require.ErrorContains(t, e.Err, c.says)
				for range 3 {
					l.lose(t)
					l.acquire(t)
				}
				require.Len(t, l.told.of(leak.EventDataLoss), 1) // no second event within a minute
			})
		}
	}
}

// tenth is a limit that empties soon.
var tenth = outbound.Limit{Capacity: 100, LeakRate: 10}

func TestAServerThatIsFlushedIsToldByEachWorker(t *testing.T) {
	redistest.Each(t, func(t *testing.T, _ string, rdb redis.UniversalClient) {
		key := fmt.Sprint("flushed:", rand.Uint64())
		var workers []*loser
		for range 3 {
			var told events
			store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
			b := outbound.Must(outbound.NewSharedBucket(store, key, tally))
			workers = append(workers, &loser{nil, b, store, &told})
		}
		all := func() {
			for _, w := range workers {
				_, err := w.Acquire(context.Background(), outbound.Cost{1})
				require.NoError(t, err)
			}
		}
		all()
		require.NoError(t, rdb.Del(t.Context(), workers[0].store.Key(key)).Err())
		all()
		for _, w := range workers {
			require.Equal(t, key, w.told.await(t, leak.EventDataLoss).Key)
		}
	})
}

// A settle returns nothing of a charge that the server has lost: what comes back is bounded by what
// the key has on record.
func TestStore_SettleOfLostChargeReturnsNothing(t *testing.T) {
	l := (&loser{server: newClocked(t)}).worker(fmt.Sprint("settle:", rand.Uint64()), outbound.Limit{Capacity: 100, LeakRate: 1e-4})
	take := func(n float64) outbound.Permit {
		p, err := l.Acquire(t.Context(), outbound.Cost{n})
		require.NoError(t, err)
		return p
	}
	take(50)
	restore := l.copied(t)
	lost := take(40)
	restore()
	take(1)
	take(1)
	lost.Settle(outbound.Cost{})
	l.store.Forget(l.Key())
	s, err := l.State(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 52, s.Level, 0.5)
}
