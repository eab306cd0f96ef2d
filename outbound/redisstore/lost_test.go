package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// tally is a limit from which almost nothing leaks, so that a key counts charges.
var tally = outbound.Limit{Capacity: 1e9, LeakRate: 1}

// account is a bucket that counts its charges and returns.
type account struct {
	key    string
	store  leak.Store // goes around all faults
	before float64
}

// newAccount makes a key that does not run empty, because it is half full.
func newAccount(t testing.TB, rdb redis.UniversalClient, key string) *account {
	a := &account{key: fmt.Sprintf("%s:%x", key, rand.Uint64()), store: redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})}
	_, err := outbound.Must(outbound.NewSharedBucket(punctual(a.store), a.key, tally)).Acquire(t.Context(), outbound.Cost{5e8})
	require.NoError(t, err)
	a.before = 5e8
	return a
}

// charged returns what has been charged, less what has come back: the level, and what
// has leaked.
func (a *account) charged(t testing.TB) float64 {
	t.Helper()
	r, err := a.store.Update(context.Background(), a.key, &leak.Op{Limits: []leak.Limit{{Capacity: tally.Capacity, Rate: tally.LeakRate}}})
	require.NoError(t, err)
	return r.State.Level[0].Level + tally.LeakRate*r.State.Dial().Seconds() - a.before
}

func (a *account) bucket(t testing.TB, s leak.Store) *outbound.Bucket {
	b, err := outbound.NewSharedBucket(s, a.key, tally)
	require.NoError(t, err)
	return b
}

// decisions returns the number of decisions in a test that loses replies.
func decisions() int64 {
	switch {
	case os.Getenv("DRIPFEED_LONG") != "":
		return 1_000_000
	case raced || testing.Short():
		return 4_000
	}
	return 6_000
}

func ofScripts(words []string) bool { return words[0] == "EVALSHA" || words[0] == "EVAL" }

// through returns a client that connects through a proxy.
func through(t testing.TB, p *redistest.Proxy) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), ReadTimeout: time.Second, PoolSize: 20})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// many shares n calls among goroutines.
func many(goroutines int, n int64, call func(g, i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				call(g, int(i))
			}
		})
	}
	wg.Wait()
}

func TestEveryDecisionIsChargedOnceDespiteLosses(t *testing.T) {
	for name, c := range map[string]struct {
		faults  redistest.Faults
		few     int64 // the test makes one in few of all decisions
		timeout time.Duration
		errors  bool // some decisions run out of time
	}{
		"replies":            {faults: redistest.Faults{DropReplies: 0.05}, few: 1, timeout: time.Minute},
		"requests":           {faults: redistest.Faults{DropRequests: 0.05}, few: 4, timeout: time.Minute},
		"replies and delays": {faults: redistest.Faults{DropReplies: 0.05, Jitter: 5 * time.Millisecond}, few: 10, timeout: time.Minute},
		"swallowed":          {faults: redistest.Faults{SwallowReplies: 0.02, SwallowRequests: 0.02}, few: 20, timeout: 2 * time.Second, errors: true},
		"late":               {faults: redistest.Faults{Delay: 20 * time.Millisecond, Jitter: 250 * time.Millisecond}, few: 20, timeout: 200 * time.Millisecond, errors: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			direct := server.Client(t)
			proxy := redistest.NewProxy(t, server.Addr())
			c.faults.Only = ofScripts
			proxy.Set(c.faults)
			stores := []leak.Store{
				redisstore.New(through(t, proxy), redisstore.Config{Timeout: c.timeout}),
				redisstore.New(through(t, proxy), redisstore.Config{Timeout: c.timeout}),
			}
			var accounts []*account
			buckets := make([][]*outbound.Bucket, len(stores))
			for k := range 3 {
				a := newAccount(t, direct, fmt.Sprint("lost:", k))
				accounts = append(accounts, a)
				for i, s := range stores {
					buckets[i] = append(buckets[i], a.bucket(t, s))
				}
			}
			granted, doubtful := make([]atomic.Int64, len(accounts)), make([]atomic.Int64, len(accounts))
			many(64, decisions()/c.few, func(g, i int) {
				k := i % len(accounts)
				_, err := buckets[g%len(stores)][k].Acquire(context.Background(), outbound.Cost{1})
				if err == nil {
					granted[k].Add(1)
				} else {
					doubtful[k].Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			})
			proxy.Set(redistest.Faults{})
			// Wait for the messages that are still on their way.
			time.Sleep(3 * c.faults.Jitter)
			counts := proxy.Counts()
			for k, a := range accounts {
				charged, sure, open := a.charged(t), float64(granted[k].Load()), float64(doubtful[k].Load())
				t.Logf("%v granted, %v not known, %v charged", sure, open, charged)
				if !c.errors { // with errors, a busy machine may be in time for none
					require.Zero(t, open)
					require.NotZero(t, sure)
				}
				require.GreaterOrEqual(t, charged, sure-0.01)
				require.LessOrEqual(t, charged, sure+open+0.01)
			}
			t.Logf("%d requests, %d lost, %d swallowed", counts.Requests, counts.Dropped, counts.Swallowed)
		})
	}
}

func TestAWorkersFirstReplyMayBeLost(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	direct := server.Client(t)
	proxy := redistest.NewProxy(t, server.Addr())
	var mu sync.Mutex
	seen := map[string]int{}
	proxy.Set(redistest.Faults{DropReplies: 1, Only: func(words []string) bool {
		mu.Lock()
		defer mu.Unlock()
		if !ofScripts(words) || len(words) < 5 {
			return false
		}
		seen[words[4]]++
		return seen[words[4]] <= 2
	}})
	rdb := through(t, proxy)
	a := newAccount(t, direct, "first")
	const workers = 100
	for range workers {
		_, err := a.bucket(t, redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})).Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
	}
	require.InDelta(t, workers, a.charged(t), 0.01)
	require.Len(t, seen, workers)
	require.GreaterOrEqual(t, proxy.Counts().Dropped, 2*workers)
}

// The store books only the first of very many places with one trip, and the rest with
// another.
func TestARepeatedBatchOfAnySizeIsUnchanged(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, n := range []int{1, 2, 500, 4_096, 4_097, 20_000} {
		proxy := redistest.NewProxy(t, server.Addr())
		a := newAccount(t, server.Client(t), "batch")
		b := a.bucket(t, redisstore.New(through(t, proxy), redisstore.Config{Timeout: time.Minute}))
		_, err := b.State(t.Context()) // the server knows the script from here on
		require.NoError(t, err)
		var lost atomic.Int32
		proxy.Set(redistest.Faults{DropReplies: 1, Only: func(words []string) bool { return ofScripts(words) && lost.Add(1) == 1 }})
		k := outbound.Booking{Wait: time.Second}
		for range n {
			k.Costs = append(k.Costs, outbound.Cost{1})
		}
		require.NoError(t, b.Book(t.Context(), &k))
		require.Len(t, k.Tickets, min(n, 4096))
		require.InDelta(t, min(n, 4096), a.charged(t), 0.01)
		require.GreaterOrEqual(t, lost.Load(), int32(2))
	}
}

func TestScriptsMayBeFlushedAtAnyTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	s := punctual(redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}))
	var accounts []*account
	var buckets []*outbound.Bucket
	for range 20 { // often enough to make pipelines
		a := newAccount(t, rdb, "flush")
		accounts = append(accounts, a)
		buckets = append(buckets, a.bucket(t, s))
	}
	ctx, cancel := context.WithCancel(t.Context())
	flushed := 0
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = rdb.ScriptFlush(ctx).Err()
			flushed++
			time.Sleep(2 * time.Millisecond)
		}
	})
	n := decisions() / 2
	granted := make([]atomic.Int64, len(accounts))
	many(64, n, func(_, i int) {
		if _, err := buckets[i%len(buckets)].Acquire(ctx, outbound.Cost{1}); err == nil {
			granted[i%len(buckets)].Add(1)
		}
	})
	cancel()
	flusher.Wait()
	sum := 0.
	for k, a := range accounts {
		require.InDelta(t, float64(granted[k].Load()), a.charged(t), 0.01)
		sum += a.charged(t)
	}
	require.InDelta(t, float64(n), sum, 0.1)
	t.Logf("flushed %d times in %d decisions", flushed, n)
}

func TestNothingComesBackTwiceDespiteLosses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Set(redistest.Faults{DropReplies: 0.1, Only: ofScripts})
	s := redisstore.New(through(t, proxy), redisstore.Config{Timeout: time.Minute})
	a := newAccount(t, server.Client(t), "back")
	b := a.bucket(t, s)
	// On a busy machine an answer may come too late twice. The call is then given back, and asks again.
	acquire := func(c outbound.Cost) outbound.Permit {
		for {
			p, err := b.Acquire(context.Background(), c)
			if err == nil {
				return p
			}
			var failed *outbound.StoreError
			require.ErrorAs(t, err, &failed)
			require.ErrorContains(t, err, "answers come too late")
		}
	}
	var kept atomic.Int64 // thousandths
	many(32, decisions()/4, func(g, i int) {
		switch i % 3 {
		case 0: // give back an unused ticket
			k := outbound.Booking{Costs: []outbound.Cost{{2}, {1}}, Wait: time.Second}
			require.NoError(t, b.Book(context.Background(), &k))
			back := outbound.Booking{Back: k.Tickets[:1]}
			require.NoError(t, b.Book(context.Background(), &back))
			kept.Add(1000)
		case 1: // settle a call that cost less
			p := acquire(outbound.Cost{3})
			p.Settle(outbound.Cost{1.5})
			kept.Add(1500)
		case 2: // settle a call that cost more
			p := acquire(outbound.Cost{1})
			p.Settle(outbound.Cost{1.25})
			kept.Add(1250)
		}
	})
	want, got := float64(kept.Load())/1000, a.charged(t)
	// A charge whose reply was lost gives nothing back: that costs room, and no more.
	t.Logf("%v used, %v charged", want, got)
	require.GreaterOrEqual(t, got, want-0.01)
	require.LessOrEqual(t, got, want*1.3)
}

// Each key has one caller, so no decision goes in one trip with a return.
func TestAReturnWhoseReplyIsLostReturnsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Set(redistest.Faults{DropReplies: 0.3, Only: func(words []string) bool {
		if !ofScripts(words) || len(words) < 8 {
			return false
		}
		step := words[7] // the words before are the script, the key, the worker, the numbers and one field
		return step[0] == 'S' || step[0] == 'U'
	}})
	var accounts []*account
	for range 8 {
		accounts = append(accounts, newAccount(t, server.Client(t), "once"))
	}
	n := int(decisions() / 1000)
	var wg sync.WaitGroup
	for _, a := range accounts {
		// One store for each, so that no pipeline loses the replies of others with it.
		b := a.bucket(t, redisstore.New(through(t, proxy), redisstore.Config{Timeout: time.Minute}))
		wg.Go(func() {
			for range n {
				k := outbound.Booking{Costs: []outbound.Cost{{2}, {3}, {8}}, Wait: time.Second}
				require.NoError(t, b.Book(context.Background(), &k))
				back := outbound.Booking{Back: k.Tickets[1:2]}
				require.NoError(t, b.Book(context.Background(), &back))
				for _, i := range []int{0, 2} {
					p := k.Tickets[i].Permit()
					p.Settle(outbound.Cost{k.Costs[i][0] / 2})
					p.Settle(outbound.Cost{})
				}
			}
		})
	}
	wg.Wait()
	for _, a := range accounts {
		require.InDelta(t, 5*float64(n), a.charged(t), 0.01)
	}
	require.NotZero(t, proxy.Counts().Dropped)
}
