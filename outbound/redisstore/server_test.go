package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A server without memory that evicts nothing refuses a step whole, before it has written anything.
func TestServer_WithoutMemoryRefusesAStepWhole(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	if !server.Real() {
		t.Skip("a miniredis has no memory limit")
	}
	rdb, ctx := server.Client(t), context.Background()
	limits := []store.Limit{{Name: "a", Capacity: 100, Rate: 1e-3}, {Name: "w", Kind: store.Window, Capacity: 100, Rate: 1e-3, Window: 1e5 * time.Second}}
	s := New(rdb, Config{Timeout: 200 * time.Millisecond})
	book := store.Op{Action: store.Book, Costs: []store.Units{{1, 1}}}
	ask := func(key string, op store.Op) (store.Reply, error) {
		op.Limits, op.Base = limits, store.Hash(limits)
		s.engine.Forget(key)
		return s.Update(ctx, key, &op)
	}
	var r store.Reply
	require.Eventually(t, func() (ok bool) { // a busy machine
		var err error
		r, err = ask("key", book)
		return err == nil
	}, time.Minute, time.Millisecond)
	dump := func() string { return rdb.Dump(ctx, s.Key("key")).Val() }
	before := dump()
	server.Config(t, "maxmemory", "1")
	for name, op := range map[string]store.Op{
		"book": book, "return": {Unused: r.Charges}, "refused": {Reports: []store.Report{{Kind: store.Refused, Wait: time.Second, MaxWait: time.Minute}}},
		"pause": {Reports: []store.Report{{Kind: store.Paused, Wait: time.Second}}}, "settle": {Reports: []store.Report{{Kind: store.Settled, Charge: &r.Charges[0], Used: store.Units{5, 5}}}},
		"replace": {Action: store.Replace, Number: r.Number, Replacement: limits[:1]},
	} {
		_, err := ask("key", op)
		require.ErrorIs(t, err, store.ErrUnavailable, name)
		require.Equal(t, before, dump(), "%s: %v", name, err)
	}
	_, err := ask("new", book)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Zero(t, rdb.Exists(ctx, s.Key("new")).Val())
	server.Config(t, "maxmemory", "0")
	require.Eventually(t, func() bool { _, err = ask("key", book); return err == nil }, time.Minute, time.Millisecond)
}

// A bucket that the server evicts begins again: at most one more capacity leaves, and an event reports
// it. Under the volatile policies the buckets are what goes.
func TestServer_EvictionIsReported(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "volatile-ttl"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--maxmemory-policy", policy)
			if !server.Real() {
				t.Skip("a miniredis evicts nothing")
			}
			rdb := server.Client(t)
			p := newProcess(t, rdb, "key", still)
			for range 100 {
				p.acquire(t)
			}
			server.Config(t, "maxmemory", "4mb")
			text := strings.Repeat("x", 10_000)
			for i := 0; rdb.Exists(t.Context(), p.store.Key("key")).Val() == 1; i++ {
				require.Less(t, i, 10_000, "the bucket is not evicted")
				_ = rdb.Set(t.Context(), fmt.Sprint("other ", i), text, 0).Err() // out of memory, if only others are left
			}
			server.Config(t, "maxmemory", "0")
			p.acquire(t)
			require.Contains(t, p.seen.await(t, store.EventDataLoss).Err.Error(), "evicts keys")
		})
	}
}

// A Ring that has lost a shard moves its keys to another one, where they begin again: at most one more
// capacity leaves, and an event reports it.
func TestServer_LostShardOfARing(t *testing.T) {
	t.Parallel()
	shards := map[string]*redistest.Server{"a": redistest.Start(t), "b": redistest.Start(t)}
	if !shards["a"].Real() {
		t.Skip("a miniredis does not stop")
	}
	o := &redis.RingOptions{Addrs: map[string]string{}, HeartbeatFrequency: 20 * time.Millisecond, DialerRetries: 1, MaxRetries: -1}
	for name, s := range shards {
		o.Addrs[name] = s.Addr()
	}
	rdb := redis.NewRing(o)
	t.Cleanup(func() { _ = rdb.Close() })
	p := newProcess(t, rdb, "key", still)
	left := 0.
	spend := func() {
		t.Helper()
		require.Eventually(t, func() bool { // until the Ring has found out
			p.store.engine.Forget(p.Key())
			_, err := p.Acquire(t.Context(), outbound.Cost{1})
			if err == nil {
				left++
			}
			return err == nil
		}, time.Minute, time.Millisecond)
		for range 150 {
			if _, err := p.Acquire(t.Context(), outbound.Cost{1}); err == nil {
				left++
			}
		}
	}
	spend()
	require.Equal(t, still.Capacity, left)
	lost := "a"
	if shards["b"].Client(t).Exists(t.Context(), p.store.Key("key")).Val() == 1 {
		lost = "b"
	}
	shards[lost].Kill(t)
	spend()
	require.Equal(t, 2*still.Capacity, left)
	require.NotEmpty(t, p.seen.of(store.EventDataLoss))
}
