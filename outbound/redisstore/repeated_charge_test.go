package redisstore_test

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// A charge that a worker hears of only when it asks once more is the one that it would have
// heard of at first: with the place of the booking before, to which giving it back leads.
func TestARepeatedChargeIsTheSame(t *testing.T) {
	t.Parallel()
	leaky, other := leak.Limit{Capacity: 2, Rate: 1}, leak.Limit{Name: "other", Capacity: 30, Rate: 7}
	window := leak.Limit{Name: "window", Capacity: 3, Rate: 1, Kind: leak.Moving, Window: 3 * time.Second}
	for name, limits := range map[string][]leak.Limit{
		"a leaky limit": {leaky}, "two": {leaky, other}, "a window": {window}, "both": {leaky, window},
	} {
		for _, calls := range []int{1, 3} {
			s := newMini(t)
			proxy := redistest.NewProxy(t, s.rdb.Options().Addr)
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Minute})
			t.Cleanup(func() { _ = rdb.Close() })
			store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
			var lose atomic.Bool
			proxy.Set(redistest.Faults{DropReplies: 1, Only: func(words []string) bool {
				return words[0] == "EVALSHA" && lose.CompareAndSwap(true, false)
			}})
			book := func(key string, calls int) []leak.Charge {
				op := &leak.Op{Limits: limits, Action: leak.Book, Wait: math.MaxInt64, Horizon: math.MaxInt64}
				op.Costs = slices.Repeat([]leak.Units{{1, 1}}, calls)
				r, err := store.Update(t.Context(), key, op)
				require.NoError(t, err)
				require.Len(t, r.Charges, calls)
				return slices.Clone(r.Charges)
			}
			book("heard", 4) // the last of them goes later
			book("lost", 4)
			s.forward(time.Second / 2)
			want := book("heard", calls)
			lose.Store(true)
			got := book("lost", calls)
			require.False(t, lose.Load())
			for i := range got {
				got[i].Seq = want[i].Seq // each key has its own
			}
			require.Equal(t, want, got, "%s, %d calls", name, calls)
		}
	}
}
