package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// process is a process that uses a bucket, with what it has reported.
type process struct {
	*outbound.Bucket
	store *Store
	seen  *events
}

func newProcess(t testing.TB, rdb redis.UniversalClient, key string, limit outbound.Limit) *process {
	p := &process{seen: new(events)}
	p.store = New(rdb, Config{Timeout: time.Minute, Observe: p.seen.observe})
	p.Bucket = bucketOf(t, p.store, key, limit)
	return p
}

func (p *process) acquire(t testing.TB) outbound.Permit {
	t.Helper()
	p.store.engine.Forget(p.Key()) // a refusal: it counts by this process's clock
	permit, err := p.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	return permit
}

// quiet checks that no loss is reported. It causes another event, which comes after all earlier
// ones.
func (p *process) quiet(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	require.NoError(t, rdb.Set(t.Context(), p.store.Key(p.Key()), "no bucket", 0).Err())
	p.store.engine.Forget(p.Key())
	_, err := p.State(t.Context())
	require.NoError(t, err)
	p.seen.await(t, store.EventCorrupt)
	require.Empty(t, p.seen.of(store.EventDataLoss))
}

// restore replaces a key by an older copy of it.
func restore(t testing.TB, rdb redis.UniversalClient, name string, fields map[string]string) {
	t.Helper()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.HSet(t.Context(), name, fields).Err())
}

// Each process reports a loss of data once, whatever it does first afterwards. A key that has
// expired, or that has forgotten the process's record only, is no loss.
func TestStore_DataLossIsReportedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	var offset time.Duration
	forward := func(d time.Duration) {
		offset += d
		server.SetClock(t, offset)
	}
	const gone, older, none = "the bucket starts empty", "the latest charges are gone", ""
	tenth := outbound.Limit{Capacity: 100, LeakRate: 10}
	var name string
	lose := func() {
		forward(time.Millisecond) // no two lives begin at the same time
		require.NoError(t, rdb.Del(t.Context(), name).Err())
	}
	for _, c := range []struct {
		why, says string
		do        func(t *testing.T, p *process)
	}{
		{"the key is gone", gone, func(t *testing.T, p *process) { lose(); p.acquire(t) }},
		{"the key is gone, and looks come first", gone, func(t *testing.T, p *process) {
			lose()
			for range 3 {
				_, err := p.State(t.Context())
				require.NoError(t, err)
			}
			p.acquire(t)
		}},
		{"the key is gone, and another process comes first", gone, func(t *testing.T, p *process) {
			lose()
			newProcess(t, rdb, p.Key(), tenth).acquire(t)
			p.acquire(t)
		}},
		{"the key is gone before it expires", gone, func(t *testing.T, p *process) { forward(25 * time.Second); lose(); p.acquire(t) }},
		{"the key is older", older, func(t *testing.T, p *process) {
			fields := rdb.HGetAll(t.Context(), name).Val()
			p.acquire(t)
			forward(time.Millisecond)
			restore(t, rdb, name, fields)
			p.acquire(t)
		}},
		{"limits that were set are gone", gone, func(t *testing.T, p *process) {
			require.NoError(t, p.SetLimits(t.Context(), outbound.Limit{Capacity: 3, LeakRate: 1}))
			forward(24 * time.Hour)
			lose()
			p.acquire(t)
		}},
		{"nothing", none, func(t *testing.T, p *process) { p.acquire(t); forward(time.Minute); p.acquire(t) }},
		{"the key has expired", none, func(t *testing.T, p *process) { forward(time.Hour); p.acquire(t) }},
		{"the key has expired, and another process comes first", none, func(t *testing.T, p *process) {
			forward(time.Hour)
			newProcess(t, rdb, p.Key(), tenth).acquire(t)
			p.acquire(t)
		}},
		{"the bucket is resumed", none, func(t *testing.T, p *process) {
			require.NoError(t, newProcess(t, rdb, p.Key(), tenth).Resume(t.Context()))
			forward(time.Minute)
			p.acquire(t)
		}},
		{"the record is forgotten", none, func(t *testing.T, p *process) {
			require.NoError(t, rdb.HDel(t.Context(), name, p.store.carrier.worker.Load().(string)).Err())
			p.acquire(t)
		}},
	} {
		t.Run(c.why, func(t *testing.T) {
			p := newProcess(t, rdb, fmt.Sprint("loss ", rand.Uint64()), tenth)
			name = p.store.Key(p.Key())
			p.acquire(t)
			p.acquire(t)
			c.do(t, p)
			if c.says == none {
				p.quiet(t, rdb)
				return
			}
			e := p.seen.await(t, store.EventDataLoss)
			require.Equal(t, p.Key(), e.Key)
			require.ErrorContains(t, e.Err, c.says)
			for range 3 { // within a minute of the first
				lose()
				p.acquire(t)
			}
			require.Len(t, p.seen.of(store.EventDataLoss), 1)
		})
	}
}

// A script that the server forgets before each call is sent again, and each call is charged once.
func TestStore_FlushedScriptChargesOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		p := newProcess(t, rdb, fmt.Sprint("flush ", rand.Uint64()), still)
		for i := range 20 {
			require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
			permit := p.acquire(t)
			if i%4 == 0 {
				require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
				permit.Settle(outbound.Cost{2})
			}
			if i%5 == 0 { // a swap
				require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
				_, err := p.Fillup(t.Context(), outbound.Cost{1})
				require.NoError(t, err)
			}
		}
		s, err := p.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 20+5+4, s.Level, 0.1)
		p.quiet(t, rdb)
	})
}

// A step that finds an older copy of its key returns nothing of charges from before, and no step after
// it does: by now other calls have their numbers. Charges from after the loss return their units.
func TestStore_StepThatFindsALossReturnsNoUnitsOfOthers(t *testing.T) {
	limits := []store.Limit{{Name: "calls", Capacity: 100, Rate: 1e-4}}
	for _, swap := range []bool{false, true} {
		rdb := redistest.Start(t).Client(t)
		s, other := New(rdb, Config{Timeout: time.Minute}), New(rdb, Config{Timeout: time.Minute})
		book := func(s *Store, op store.Op) store.Reply {
			op.Limits, op.Base, op.Action, op.Costs = limits, store.Hash(limits), store.Book, []store.Units{{1}}
			r, err := s.Update(t.Context(), "key", &op)
			require.NoError(t, err)
			require.Len(t, r.Charges, 1)
			return r
		}
		book(s, store.Op{})
		older := rdb.HGetAll(t.Context(), s.Key("key")).Val()
		settled, later, unused := book(s, store.Op{}).Charges, book(s, store.Op{}).Charges, book(s, store.Op{}).Charges
		restore(t, rdb, s.Key("key"), older)
		for range 3 {
			book(other, store.Op{})
		}
		last := store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &settled[0]}}, Unused: unused}
		if swap {
			last.Reports = append(last.Reports, store.Report{Kind: store.Paused})
		}
		kept := book(s, last).Charges
		require.InDelta(t, 6, book(other, store.Op{}).State.Level[0], 0.1)
		settle := func(c *store.Charge) store.Op {
			return store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: c}}}
		}
		require.InDelta(t, 7, book(s, settle(&later[0])).State.Level[0], 0.1)
		require.InDelta(t, 7, book(s, settle(&kept[0])).State.Level[0], 0.1)
	}
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
