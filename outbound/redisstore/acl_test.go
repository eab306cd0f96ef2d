package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The user that the package's documentation describes can do all that the store does: hot steps,
// swaps, corrupt keys, and more processes than a key has room for.
func TestStore_DocumentedUserHasAllRights(t *testing.T) {
	server := redistest.Start(t, "--save", "") // a miniredis has no ACL
	admin := server.Client(t)
	ctx := context.Background()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	m := regexp.MustCompile(`ACL SETUSER dripfeed on >password ([^\n]*)\n//\t +([^\n]*)\n`).FindStringSubmatch(string(text))
	require.NotNil(t, m)
	user := fmt.Sprint("user", rand.Uint64())
	args := []any{"ACL", "SETUSER", user, "on", ">password"}
	for _, w := range strings.Fields(m[1] + " " + m[2]) {
		args = append(args, w)
	}
	require.NoError(t, admin.Do(ctx, args...).Err())
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: "password", MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	s := New(rdb, Config{Timeout: time.Minute})
	limits := []store.Limit{{Name: "a", Capacity: 1e6, Rate: 1}}
	step := func(op store.Op) {
		op.Limits, op.Number = limits, 1
		s.engine.Forget("k") // the refusal of a key that is full
		_, err := s.Update(ctx, "k", &op)
		require.NoError(t, err)
	}
	book := store.Op{Action: store.Book, Costs: []store.Units{{1}}, Wait: 1000 * time.Hour}
	step(book)
	step(store.Op{Reports: []store.Report{{Kind: store.Refused, Wait: 1, MaxWait: 1}, {Kind: store.Paused, Wait: 1}}})
	step(store.Op{Action: store.Resume})
	for _, kind := range []string{"s", "v"} {
		require.NoError(t, admin.HSet(ctx, s.Key("k"), kind, "corrupt").Err())
		step(book)
	}
	require.NoError(t, admin.Del(ctx, s.Key("k")).Err())
	require.NoError(t, admin.Set(ctx, s.Key("k"), "a string", 0).Err())
	step(book)
	for i := range 1_100 {
		require.NoError(t, admin.HSet(ctx, s.Key("k"), fmt.Sprintf("w%08d", i), "1 "+string(numbers(nil, float64(i), 0))).Err())
	}
	s.carrier.rename()
	step(book)
	n, err := admin.HLen(ctx, s.Key("k")).Result()
	require.NoError(t, err)
	require.Less(t, n, int64(780), "the processes that have not used the key for the longest are forgotten")
	require.True(t, admin.HExists(ctx, s.Key("k"), s.carrier.worker.Load().(string)).Val())
	require.Equal(t, redis.Nil, admin.HGet(ctx, s.Key("k"), "w00000000").Err())
}
