package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// trouble is a way in which a server does not do what it is asked.
type trouble struct {
	why    string
	says   string // a part of the error's text
	away   bool   // the server may come back by itself
	denied bool   // no wait cures it
	empty  bool   // the cure loses the stored data
	args   []string
	// cause makes the trouble, and returns a function that ends it. It may change
	// how clients are made.
	cause func(t *testing.T, s *redistest.Server, o *redis.Options, name string) (cure func())
}

var troubles = []trouble{
	{why: "the connection is refused", says: "connection refused", away: true, empty: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Kill(t)
		return func() { s.Restart(t) }
	}},
	{why: "the password is missing", says: "NOAUTH", denied: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Do(t, "ACL", "SETUSER", "default", "resetpass", ">secret")
		return func() {
			admin := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "nopass").Err())
		}
	}},
	{why: "the password is wrong", says: "WRONGPASS", denied: true, cause: func(t *testing.T, s *redistest.Server, o *redis.Options, _ string) func() {
		s.Do(t, "ACL", "SETUSER", "worker", "on", ">right", "+@all", "~*")
		o.Username, o.Password = "worker", "wrong"
		return func() { s.Do(t, "ACL", "SETUSER", "worker", ">wrong") }
	}},
	{why: "the permission is missing", says: "NOPERM", denied: true, cause: func(t *testing.T, s *redistest.Server, o *redis.Options, _ string) func() {
		s.Do(t, "ACL", "SETUSER", "worker", "on", ">right", "+@all", "~others:*")
		o.Username, o.Password = "worker", "right"
		return func() { s.Do(t, "ACL", "SETUSER", "worker", "~dripfeed:*") }
	}},
	{why: "the server is a replica", says: "READONLY", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Do(t, "REPLICAOF", "127.0.0.1", "1") // no master answers there, so the server keeps its data
		return func() { s.Do(t, "REPLICAOF", "NO", "ONE") }
	}},
	{why: "the memory is full", says: "OOM", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Config(t, "maxmemory", "1", "maxmemory-policy", "noeviction")
		return func() { s.Config(t, "maxmemory", "0") }
	}},
	{why: "the server cannot save", says: "MISCONF", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		dir := s.Do(t, "CONFIG", "GET", "dir").(map[any]any)["dir"].(string)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "dump.rdb", "in the way"), 0o700))
		s.Config(t, "save", "3600 1")
		s.Do(t, "BGSAVE")
		require.Eventually(t, func() bool {
			return strings.Contains(fmt.Sprint(s.Do(t, "INFO", "persistence")), "rdb_last_bgsave_status:err")
		}, time.Minute, 5*time.Millisecond)
		return func() { s.Config(t, "stop-writes-on-bgsave-error", "no") }
	}},
	{why: "the replica has lost its master", says: "MASTERDOWN", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Config(t, "replica-serve-stale-data", "no")
		s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		return func() { s.Do(t, "REPLICAOF", "NO", "ONE") }
	}},
	{why: "replicas are missing", says: "NOREPLICAS", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Config(t, "min-replicas-to-write", "1")
		return func() { s.Config(t, "min-replicas-to-write", "0") }
	}},
	{why: "the cluster is down", says: "CLUSTERDOWN", away: true, args: []string{"--cluster-enabled", "yes"}, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Do(t, "CLUSTER", "DELSLOTSRANGE", "0", "16383")
		return func() {
			s.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
		}
	}},
	{why: "another client's script runs", says: "BUSY", away: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options, _ string) func() {
		s.Config(t, "busy-reply-threshold", "1")
		other := s.Client(t, func(o *redis.Options) { o.MaxRetries = -1; o.ReadTimeout = time.Minute })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = other.Eval(context.Background(), "while true do end", nil).Err() // runs until the test kills it
		}()
		require.Eventually(t, func() bool {
			err := s.Client(t).Ping(t.Context()).Err()
			return err != nil && redis.HasErrorPrefix(err, "BUSY")
		}, time.Minute, 5*time.Millisecond)
		return func() {
			s.Do(t, "SCRIPT", "KILL")
			<-ended
		}
	}},
}

func TestTroubleIsAStoreErrorAndChargesNothing(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, append([]string{"--maxclients", "500"}, c.args...)...)
			if c.args != nil {
				s.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
				require.Eventually(t, func() bool {
					return s.Client(t).Set(t.Context(), "any", 1, 0).Err() == nil
				}, time.Minute, 10*time.Millisecond)
			}
			limit := outbound.Limit{Capacity: 100, LeakRate: 1e-6}
			key := fmt.Sprint("trouble with ", c.why, rand.Uint32())
			plain := redisstore.New(s.Client(t), redisstore.Config{Timeout: time.Minute})
			before := outbound.Must(outbound.NewSharedBucket(plain, key, limit))
			_, err := before.Acquire(t.Context(), outbound.Cost{10})
			require.NoError(t, err)
			for i := 3; i < 6; i++ { // for these keys a worker has set limits
				set := outbound.Must(outbound.NewSharedBucket(plain, fmt.Sprint(key, i), limit))
				require.NoError(t, set.SetLimits(t.Context(), outbound.Limit{Capacity: 50, LeakRate: 1e-6}))
			}

			o := &redis.Options{Addr: s.Addr(), DialerRetries: 1}
			cure := c.cause(t, s, o, plain.Key(key))
			rdb := redis.NewClient(o)
			t.Cleanup(func() { _ = rdb.Close() })
			var told events
			timeout := time.Second
			if c.denied {
				timeout = time.Minute // the error comes at once, as soon as the machine lets it
			}
			store := redisstore.New(rdb, redisstore.Config{Timeout: timeout, Observe: told.observe})
			b := outbound.Must(outbound.NewSharedBucket(store, key, limit))
			lost := 0. // calls whose reply a busy machine has not heard in time: they may be charged
			for said := 0; said < 3; {
				_, err = b.Acquire(t.Context(), outbound.Cost{1})
				var failed *outbound.StoreError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, key, failed.Key)
				require.Equal(t, "book", failed.Op)
				if strings.Contains(err.Error(), c.says) {
					said++
				} else {
					require.ErrorContains(t, err, unheard)
					lost++
					continue
				}
				require.ErrorContains(t, err, key)
				require.NotContains(t, err.Error(), "secret")
				require.Equal(t, c.away, isAway(err), "%v", err)
				require.False(t, failed.RetryableError())
			}
			if c.away {
				told.await(t, leak.EventDown)
			} else {
				require.Empty(t, told.of(leak.EventDown))
			}
			outages := store.Stats().Outages
			require.Len(t, outages, 1)
			require.ErrorContains(t, outages[0].Err, c.says)
			require.Equal(t, c.away, isAway(outages[0].Err))
			for i := range 6 { // a look at another key gets the same error, and ends no outage
				other := outbound.Must(outbound.NewSharedBucket(store, fmt.Sprint(key, i), limit))
				_, err := other.State(t.Context())
				require.Equal(t, c.away, isAway(err), "%v", err)
				require.Empty(t, told.of(leak.EventUp))
			}
			if c.denied {
				require.ErrorContains(t, told.await(t, leak.EventDenied).Err, c.says)
				require.Len(t, told.of(leak.EventDenied), 1)
			} else {
				require.Empty(t, told.of(leak.EventDenied))
			}

			cure()
			granted := 0.
			require.Eventually(t, func() bool { // the same store goes on, without a restart
				_, err := b.Acquire(t.Context(), outbound.Cost{1})
				if err == nil {
					granted++
				} else {
					lost++ // its last attempt may have met the server cured, and its reply come too late
				}
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			is := store.Stats()
			require.Empty(t, is.Outages)
			require.Equal(t, uint64(granted), is.Answered)
			require.GreaterOrEqual(t, is.Failed, uint64(3+6))
			require.NotZero(t, is.Trips.Time)
			if c.away {
				told.await(t, leak.EventUp)
			}
			state, err := b.State(t.Context())
			require.NoError(t, err)
			if !c.empty {
				granted += 10
			}
			require.GreaterOrEqual(t, state.Level, granted-0.1)
			require.LessOrEqual(t, state.Level, granted+lost+0.1)
		})
	}
}

// unheard is what the error of a call says whose reply may be lost.
const unheard = "no answer within"

func isAway(err error) bool { return errors.Is(err, outbound.ErrAway) }

func TestAClientWithoutAConnectionLeftIsAway(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 10*time.Millisecond })
	held := rdb.Conn() // held for long, as by a blocking command
	require.NoError(t, held.Ping(t.Context()).Err())
	var told events
	b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: 300 * time.Millisecond, Observe: told.observe}), "pool", reset))
	for said := false; !said; { // a busy machine may hear nothing in time
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.ErrorIs(t, err, outbound.ErrAway)
		if said = errors.Is(err, redis.ErrPoolTimeout); said {
			require.ErrorContains(t, err, "the client has no connection left")
		}
	}
	told.await(t, leak.EventDown)
	require.NoError(t, held.Close())
	require.Eventually(t, func() bool {
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	told.await(t, leak.EventUp)
}

func TestAWrongAddressIsAStoreError(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:1", "nowhere.invalid:6379", "not an address"} {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: 200 * time.Millisecond}), addr, outbound.PerSecond(1)))
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		var failed *outbound.StoreError
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, outbound.ErrAway)
	}
}

func TestAClientThatIsClosedOrMissingIsAnError(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	require.NoError(t, rdb.Close())
	_, err := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "closed", outbound.PerSecond(1))).Acquire(t.Context(), outbound.Cost{1})
	require.ErrorIs(t, err, redis.ErrClosed)
	require.False(t, isAway(err))
	var none *redis.Client
	for _, rdb := range []redis.UniversalClient{nil, none} {
		_, err = outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "nil", outbound.PerSecond(1))).Acquire(t.Context(), outbound.Cost{1})
		require.ErrorIs(t, err, outbound.ErrNil)
		require.Zero(t, redisstore.New(rdb, redisstore.Config{}).Stats())
	}
	var store *redisstore.Store
	require.Zero(t, store.Stats())
}
