package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
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

// renamedTo returns the name of a command on a server that may have renamed it.
func renamedTo(command string, renamed bool) string {
	if renamed {
		return "other-" + command
	}
	return command
}

// A process that lacks a command of the script, by its rights or because the server has renamed it,
// fails with the server's words and leaves the key as it is, while other processes use it.
func TestStore_LackOfACommandLeavesTheKey(t *testing.T) {
	ctx := context.Background()
	limits := []store.Limit{{Name: "a", Capacity: 1e6, Rate: 1}, {Name: "w", Kind: store.Window, Capacity: 1e6, Rate: 1e3, Window: 1000 * time.Second}}
	book := store.Op{Action: store.Book, Costs: []store.Units{{1, 1}}, Limits: limits}
	pause := store.Op{Reports: []store.Report{{Kind: store.Paused, Wait: time.Millisecond}}, Limits: limits}
	refused := store.Op{Reports: []store.Report{{Kind: store.Refused, Wait: time.Millisecond, MaxWait: time.Millisecond}}, Limits: limits}
	for _, command := range []string{"time", "hmget", "hget", "hset", "hdel", "hlen", "hgetall", "del", "pexpire", "evalsha", "eval"} {
		for _, renamed := range []bool{false, true} {
			t.Run(fmt.Sprint(command, " renamed ", renamed), func(t *testing.T) {
				t.Parallel()
				var server *redistest.Server
				options := redis.Options{MaxRetries: -1}
				if renamed {
					server = redistest.Start(t, "--save", "", "--rename-command", command, "other-"+command)
				} else {
					server = redistest.Start(t, "--save", "")
					require.NoError(t, server.Client(t).Do(ctx, "ACL", "SETUSER", "lacks", "on", ">password", "~*", "+@all", "-"+command).Err())
					options.Username, options.Password = "lacks", "password"
				}
				admin := server.Client(t)
				options.Addr = server.Addr()
				rdb := redis.NewClient(&options)
				t.Cleanup(func() { _ = rdb.Close() })
				var denied atomic.Int64
				less := New(rdb, Config{Timeout: 20 * time.Second, Observe: func(e store.StoreEvent) {
					switch e.Kind {
					case store.EventDenied:
						denied.Add(1)
					case store.EventCorrupt, store.EventDown:
						t.Error(e)
					}
				}})
				all := New(admin, Config{Timeout: 20 * time.Second})
				name, level := all.Key("k"), 0.
				dump := func() string {
					return admin.Do(ctx, renamedTo("hmget", renamed && command == "hmget"), name, "s", "v", "u", "g").String()
				}
				for range 4 {
					if !renamed { // another process books and pauses
						for _, op := range []store.Op{book, refused, pause} {
							r, err := all.Update(ctx, "k", &op)
							require.NoError(t, err)
							level = r.State.Level[0]
						}
					}
					for _, op := range []store.Op{book, refused, pause} {
						before := dump()
						less.engine.Forget("k")
						if r, err := less.Update(ctx, "k", &op); err != nil {
							require.NotErrorIs(t, err, store.ErrUnavailable)
							require.Regexp(t, "(?i)noperm|can't run|unknown", err.Error())
							require.Equal(t, before, dump(), "a step that fails writes nothing")
						} else {
							require.False(t, r.Corrupt)
							require.Greater(t, r.State.Level[0]+1, level)
						}
					}
				}
				needed := command != "hlen" && command != "hdel" && command != "hgetall" && command != "del" && command != "hget" && command != "eval"
				if needed {
					require.Eventually(t, func() bool { return denied.Load() > 0 }, time.Minute, time.Millisecond)
				}
				require.LessOrEqual(t, denied.Load(), int64(1))
			})
		}
	}
}
