package redisstore

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The store passes the conformance test, also on a server that hangs, on requests that come late
// and on keys that hold what it cannot read.
func TestStore_PassesTheConformanceTest(t *testing.T) {
	t.Run("miniredis or redis", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
			outboundtest.TestStore(t, func(*testing.T) store.Store {
				return New(rdb, Config{Timeout: time.Minute}) // the machine may be busy
			})
		})
	})
	t.Run("cluster", func(t *testing.T) {
		rdb := redistest.SharedCluster(t).Client(t)
		outboundtest.TestStore(t, func(*testing.T) store.Store { return New(rdb, Config{Timeout: time.Minute}) })
	})
	t.Run("kinds that the script does not know", func(t *testing.T) {
		if os.Getenv("REDISSTORE_UNSCRIPTED") == "" { // in a process of its own, where all stores are so
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStore_PassesTheConformanceTest$/^kinds_that_the_script_does_not_know$")
			cmd.Env = append(os.Environ(), "REDISSTORE_UNSCRIPTED=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			return
		}
		scripted = func([]store.Limit) bool { return false }
		rdb := redistest.Start(t).Client(t)
		outboundtest.TestStore(t, func(*testing.T) store.Store { return New(rdb, Config{Timeout: time.Minute}) })
	})
	t.Run("bad line", func(t *testing.T) {
		server := redistest.Start(t)
		var mu sync.Mutex
		lines := make(map[store.Store]*redistest.Proxy)
		line := func(s store.Store) *redistest.Proxy {
			mu.Lock()
			defer mu.Unlock()
			return lines[s]
		}
		outboundtest.TestStore(t, func(t *testing.T) store.Store {
			way := redistest.NewProxy(t, server.Addr())
			s := open(t, way.Addr(), Config{Timeout: 4 * time.Second})
			mu.Lock()
			defer mu.Unlock()
			lines[s] = way
			return s
		}, outboundtest.StoreHooks{
			Break: func(s store.Store) (mend func()) {
				way := line(s)
				way.Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
				return func() { way.Set(redistest.Faults{}) }
			},
			Delay: func(s store.Store, d time.Duration) (stop func()) {
				way := line(s)
				way.Set(redistest.Faults{DelayRequests: d, Handshakes: true})
				return func() { way.Set(redistest.Faults{}) }
			},
			Corrupt: func(s store.Store, key string) {
				rdb := server.Client(t)
				name := s.(*Store).Key(key)
				rdb.HSet(context.Background(), name, "s", "corrupt", "v", "corrupt", "g", "")
			},
		})
	})
}

// A Do conforms as a client of go-redis does, and texts may be []byte.
func TestDo_Conforms(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	do := Do(func(ctx context.Context, commands [][]string) (replies []any) {
		pipe := rdb.Pipeline()
		for _, c := range commands {
			args := make([]any, len(c))
			for i := range c {
				args[i] = c[i]
			}
			_ = pipe.Process(ctx, once{redis.NewCmd(ctx, args...)})
		}
		cmds, _ := pipe.Exec(ctx)
		for _, cmd := range cmds {
			switch reply, err := cmd.(once).Result(); text := reply.(type) {
			case string:
				replies = append(replies, []byte(text))
			case nil:
				replies = append(replies, err)
			default:
				replies = append(replies, reply)
			}
		}
		return replies
	})
	outboundtest.TestStore(t, func(*testing.T) store.Store { return New(do, Config{Timeout: time.Minute}) })
}

// What a Do returns is a reply, or the Do's own fault, which is neither an outage nor charged.
func TestDo_RepliesThatAreNone(t *testing.T) {
	for _, c := range []struct {
		replies []any
		says    string
	}{
		{nil, "wrong number of replies"},
		{[]any{"", ""}, "wrong number of replies"},
		{[]any{nil}, "not a reply"},
		{[]any{[]any{[]byte("look"), "a time"}}, "not a reply"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen events
			s := New(Do(func(context.Context, [][]string) []any { return c.replies }), Config{Observe: seen.observe})
			_, err := s.Update(t.Context(), "key", &store.Op{Limits: []store.Limit{{Capacity: 1, Rate: 1}}})
			require.ErrorContains(t, err, c.says)
			require.NotErrorIs(t, err, store.ErrUnavailable)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Empty(t, seen.all)
		})
	}
	_, err := New(Do(nil), Config{}).Update(t.Context(), "key", new(store.Op))
	require.ErrorIs(t, err, errNoClient)
}
