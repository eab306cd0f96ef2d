package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// events are the events that a store has reported.
type events struct {
	mu  sync.Mutex
	all []store.StoreEvent
}

func (e *events) observe(one store.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, one)
}

// of returns the events of a kind.
func (e *events) of(kind store.StoreEventKind) (found []store.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		if one.Kind == kind {
			found = append(found, one)
		}
	}
	return found
}

// await returns the first event of a kind, and checks that there is one only.
func (e *events) await(t testing.TB, kind store.StoreEventKind) store.StoreEvent {
	t.Helper()
	require.Eventually(t, func() bool { return len(e.of(kind)) > 0 }, time.Minute, time.Millisecond, "no event %v", kind)
	require.Len(t, e.of(kind), 1)
	return e.of(kind)[0]
}

// still is a limit that leaks nothing while a test runs.
var still = outbound.Limit{Capacity: 100, LeakRate: 1e-6}

func bucketOf(t testing.TB, s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewSharedBucket(s, key, limits...)
	require.NoError(t, err)
	return b
}

// trouble is a way in which a server does not do what it is asked.
type trouble struct {
	why    string
	says   string // a part of the error's text
	denied bool   // no wait cures it
	empty  bool   // the cure loses the stored data
	args   []string
	// cause makes the trouble, and returns a function that ends it. It may change how the client is
	// made.
	cause func(t *testing.T, s *redistest.Server, o *redis.Options) (cure func())
}

// config returns a cause that sets a parameter, and sets it back.
func config(name, bad, good string) func(*testing.T, *redistest.Server, *redis.Options) func() {
	return func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		s.Config(t, name, bad)
		return func() { s.Config(t, name, good) }
	}
}

// replica makes a replica of a server, of a master that is not there.
func replica(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
	s.Do(t, "REPLICAOF", "127.0.0.1", "1")
	return func() { s.Do(t, "REPLICAOF", "NO", "ONE") }
}

// user makes the client use a user of its own.
func user(password, keys, cure string) func(*testing.T, *redistest.Server, *redis.Options) func() {
	return func(t *testing.T, s *redistest.Server, o *redis.Options) func() {
		s.Do(t, "ACL", "SETUSER", "process", "on", ">right", "+@all", keys)
		o.Username, o.Password = "process", password
		return func() { s.Do(t, "ACL", "SETUSER", "process", cure) }
	}
}

var troubles = []trouble{
	{why: "refused connection", says: "connection refused", empty: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		s.Kill(t)
		return func() { s.Restart(t) }
	}},
	{why: "no password", says: "uthentica", denied: true, cause: func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		s.Do(t, "ACL", "SETUSER", "default", "resetpass", ">secret")
		return func() {
			admin := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "nopass").Err())
		}
	}},
	{why: "wrong password", says: "WRONGPASS", denied: true, cause: user("wrong", "~*", ">wrong")},
	{why: "no permission", says: "NOPERM", denied: true, cause: user("right", "~others:*", "~dripfeed:*")},
	{why: "read-only replica", says: "READONLY", cause: replica},
	{why: "replica without its master", says: "MASTERDOWN", args: []string{"--replica-serve-stale-data", "no"}, cause: replica},
	{why: "out of memory", says: "OOM", args: []string{"--maxmemory-policy", "noeviction"}, cause: config("maxmemory", "1", "0")},
	{why: "too few replicas", says: "NOREPLICAS", cause: config("min-replicas-to-write", "1", "0")},
	{why: "failed save", says: "MISCONF", cause: func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		dir := s.Do(t, "CONFIG", "GET", "dir").(map[any]any)["dir"].(string)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "dump.rdb", "in the way"), 0o700))
		s.Config(t, "save", "3600 1")
		s.Do(t, "BGSAVE")
		require.Eventually(t, func() bool {
			return strings.Contains(fmt.Sprint(s.Do(t, "INFO", "persistence")), "rdb_last_bgsave_status:err")
		}, time.Minute, 5*time.Millisecond)
		return func() { s.Config(t, "stop-writes-on-bgsave-error", "no") }
	}},
	{why: "another client's script", says: "BUSY", cause: func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		s.Config(t, "busy-reply-threshold", "1")
		other := s.Client(t, func(o *redis.Options) { o.MaxRetries = -1; o.ReadTimeout = time.Minute })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = other.Eval(context.Background(), "while true do end", nil).Err() // until the test kills it
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
	{why: "hung server", says: "no answer within", cause: func(t *testing.T, s *redistest.Server, _ *redis.Options) func() {
		s.Stop(t)
		return func() { s.Cont(t) }
	}},
}

// Trouble of a server is a StoreError. It charges nothing, is reported once, and ends by itself
// once the server is well again.
func TestStore_TroubleIsAnErrorAndChargesNothing(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, append([]string{"--maxclients", "500"}, c.args...)...)
			key := fmt.Sprint("key ", rand.Uint32())
			_, err := bucketOf(t, New(server.Client(t), Config{Timeout: time.Minute}), key, still).Acquire(t.Context(), outbound.Cost{10})
			require.NoError(t, err)

			o := &redis.Options{Addr: server.Addr(), DialerRetries: 1, ReadTimeout: time.Minute}
			cure := c.cause(t, server, o)
			rdb := redis.NewClient(o)
			t.Cleanup(func() { _ = rdb.Close() })
			var seen events
			timeout := time.Second
			if c.denied {
				timeout = time.Minute // the error comes immediately, as soon as the machine allows
			}
			s := New(rdb, Config{Timeout: timeout, Observe: seen.observe})
			b := bucketOf(t, s, key, still)
			unknown := 0. // calls whose reply was late on a busy machine: they may be charged
			for told := 0; told < 3; {
				began := time.Now()
				_, err = b.Acquire(t.Context(), outbound.Cost{1})
				require.Less(t, time.Since(began), timeout+20*time.Second) // the client's own timeout is a minute
				var failed *outbound.StoreError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, key, failed.Key)
				require.Equal(t, "book", failed.Op)
				require.NotContains(t, err.Error(), "secret")
				if strings.Contains(err.Error(), c.says) {
					told++
				}
				if strings.Contains(err.Error(), "no answer within") {
					unknown++
				} else {
					require.ErrorContains(t, err, c.says)
				}
				require.Equal(t, !c.denied, errors.Is(err, store.ErrUnavailable), "%v", err)
			}
			kind, other := store.EventDown, store.EventDenied
			if c.denied {
				kind, other = other, kind
			}
			says := func(err error) {
				t.Helper()
				if unknown == 0 || !strings.Contains(err.Error(), "no answer within") { // it may have been the first
					require.ErrorContains(t, err, c.says)
				}
			}
			says(seen.await(t, kind).Err)
			require.Empty(t, seen.of(other))
			outages := s.Stats().Outages
			require.Len(t, outages, 1)
			says(outages[0].Err)
			for i := range 3 { // a look at another key fails in the same way, and ends no outage
				_, err := bucketOf(t, s, fmt.Sprint(key, i), still).State(t.Context())
				require.Equal(t, !c.denied, errors.Is(err, store.ErrUnavailable), "%v", err)
			}
			require.Empty(t, seen.of(store.EventUp))
			require.Len(t, seen.of(kind), 1)

			cure()
			admitted := 0.
			require.Eventually(t, func() bool {
				_, err := b.Acquire(t.Context(), outbound.Cost{1})
				if err == nil {
					admitted++
				} else {
					unknown++
				}
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			require.Empty(t, s.Stats().Outages)
			if !c.denied {
				seen.await(t, store.EventUp)
			}
			if !c.empty {
				admitted += 10
			}
			state, err := b.State(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, state.Level, admitted-0.1)
			require.LessOrEqual(t, state.Level, admitted+unknown+0.1)
		})
	}
}

// A client that cannot reach a server, has no connection left or is closed gives its own error.
func TestStore_ClientThatReachesNoServer(t *testing.T) {
	t.Parallel()
	fails := func(rdb redis.UniversalClient, timeout time.Duration) error {
		_, err := bucketOf(t, New(rdb, Config{Timeout: timeout}), "key", still).Acquire(t.Context(), outbound.Cost{1})
		var failed *outbound.StoreError
		require.ErrorAs(t, err, &failed)
		return err
	}
	for _, addr := range []string{"127.0.0.1:1", "nowhere.invalid:6379", "not an address"} {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		require.ErrorIs(t, fails(rdb, 200*time.Millisecond), store.ErrUnavailable)
	}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 10*time.Millisecond })
	held := rdb.Conn() // held for long, as by a blocking command
	require.NoError(t, held.Ping(t.Context()).Err())
	require.Eventually(t, func() bool {
		err := fails(rdb, 300*time.Millisecond)
		require.ErrorIs(t, err, store.ErrUnavailable)
		return errors.Is(err, redis.ErrPoolTimeout) && strings.Contains(err.Error(), "no connection left")
	}, time.Minute, time.Millisecond)
	require.NoError(t, held.Close())
	require.NoError(t, rdb.Close())
	err := fails(rdb, time.Second)
	require.ErrorIs(t, err, redis.ErrClosed)
	require.NotErrorIs(t, err, store.ErrUnavailable)
	var none *redis.Client
	for _, rdb := range []redis.UniversalClient{nil, none} {
		require.ErrorIs(t, fails(rdb, time.Second), errNoClient)
		require.Zero(t, New(rdb, Config{}).Stats())
	}
	var s *Store
	require.Zero(t, s.Stats())
}

// A server whose TLS the client does not accept, or whose TLS does not accept the client, is no outage.
func TestStore_TLSThatNoWaitCures(t *testing.T) {
	t.Parallel()
	web := httptest.NewUnstartedServer(http.NotFoundHandler()) // any server: none is asked anything
	web.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	web.StartTLS()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(func() { web.Close(); plain.Close() })
	for says, o := range map[string]*redis.Options{
		"unknown authority":             {Addr: web.Listener.Addr().String(), TLSConfig: &tls.Config{ServerName: "example.com"}},
		"certificate required":          {Addr: web.Listener.Addr().String(), TLSConfig: &tls.Config{InsecureSkipVerify: true}},
		"not look like a TLS handshake": {Addr: plain.Listener.Addr().String(), TLSConfig: &tls.Config{InsecureSkipVerify: true}},
	} {
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		var seen events
		_, err := bucketOf(t, New(rdb, Config{Timeout: time.Minute, Observe: seen.observe}), "key", still).Acquire(t.Context(), outbound.Cost{1})
		require.ErrorContains(t, err, says)
		require.NotErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, seen.await(t, store.EventDenied).Err, says)
		require.Empty(t, seen.of(store.EventDown))
	}
}

// A Cluster whose nodes accept connections and answer nothing keeps no call waiting.
func TestStore_SilentClusterKeepsNoCallWaiting(t *testing.T) {
	t.Parallel()
	silent := redistest.NewProxy(t, redistest.Shared(t).Addr())
	silent.Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{silent.Addr()}, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	s := New(rdb, Config{Timeout: 100 * time.Millisecond})
	began := time.Now()
	for i := range 10 {
		_, err := bucketOf(t, s, fmt.Sprint(i), still).Acquire(t.Context(), outbound.Cost{1})
		require.ErrorIs(t, err, store.ErrUnavailable)
	}
	require.Less(t, time.Since(began), 30*time.Second) // the client itself waits for a minute
}

// grants answers hot steps on keys of one limit as a server that has booked all calls on unused keys.
func grants(commands [][]string) (replies []any) {
	for _, c := range commands {
		step := decode(c[7][headSize+5:]) // 5: the head of the array
		backs, runs, booked := int(step[8]), int(step[9]), 0.
		for at := 10 + 4 + 8*backs + 6; runs > 0; runs-- {
			booked += step[at]
			at += 2
		}
		seq, _ := strconv.ParseFloat(c[5], 64)
		replies = append(replies, string(numbers(nil, seq, 1, float64(time.Now().UnixMicro()), booked, 0)))
	}
	return replies
}

// An operation ends at its Timeout, on the dot, although the client hangs for an hour, and the
// server is found again although requests to it hang still.
func TestStore_OperationEndsAtItsTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{time.Millisecond, time.Second, time.Hour / 2} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var seen events
			s := New(Do(func(_ context.Context, commands [][]string) []any {
				if time.Since(began) < 2*timeout {
					time.Sleep(time.Hour)
				}
				return grants(commands)
			}), Config{Timeout: timeout, Observe: seen.observe})
			var calls sync.WaitGroup
			for i := range 50 {
				b := bucketOf(t, s, fmt.Sprint("key", i%5), still)
				calls.Go(func() {
					time.Sleep(time.Duration(i) * timeout / 40)
					at := time.Now()
					_, err := b.Acquire(context.Background(), outbound.Cost{1})
					require.ErrorIs(t, err, store.ErrUnavailable)
					require.LessOrEqual(t, time.Since(at), timeout)
				})
			}
			calls.Wait()
			synctest.Wait()
			seen.await(t, store.EventDown)
			time.Sleep(time.Until(began.Add(2 * timeout)))
			var err error
			b := bucketOf(t, s, "key0", still)
			for fails := true; fails; fails = err != nil {
				_, err = b.Acquire(context.Background(), outbound.Cost{1})
				require.Less(t, time.Since(began), 4*timeout+2*time.Second)
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			seen.await(t, store.EventUp)
			time.Sleep(2 * time.Hour) // until the requests that hang have ended
		})
	}
}

// A server that fails for three seconds with an error that a wait may cure is down once and up
// once. One that refuses the program is denied once. The first is asked rarely meanwhile, however
// many calls come.
func TestStore_ErrorsOfAServerAreReportedOnce(t *testing.T) {
	script := "ERR Error running script (call to f_1): @user_script:78: @user_script: 78: -" // as Redis 6.2 says it
	const curables = 14                                                                      // the first so many
	for i, err := range []error{
		Error("LOADING Redis is loading the dataset in memory"), Error("READONLY You can't write against a read only replica."),
		Error("MASTERDOWN Link with MASTER is down"), Error("CLUSTERDOWN The cluster is down"), Error("BUSY Redis is busy"),
		Error("NOREPLICAS Not enough good replicas to write."), Error("OOM command not allowed when used memory > 'maxmemory'."),
		Error("MISCONF Redis is configured to save RDB snapshots"), Error("ERR max number of clients reached"),
		Error(script + "OOM command not allowed"), Error(script + "READONLY You can't write"),
		redis.ErrPoolTimeout, io.EOF, errors.New("dial tcp: connection refused"),
		Error("NOAUTH Authentication required."), Error("WRONGPASS invalid username-password pair or user is disabled."),
		Error("NOPERM this user has no permissions to run the 'evalsha' command"), Error("ERR The user executing the script can't run this command or subcommand script: 1"),
		Error("ERR Protocol error: unauthenticated multibulk length"), Error("ERR AUTH <password> called without any password configured for the default user."),
		Error("DENIED Redis is running in protected mode because protected mode is enabled"), Error("ERR DB index is out of range"),
		Error("ERR unknown command `EVALSHA`, with args beginning with: "), Error("ERR unknown command 'evalsha'"),
		fmt.Errorf("dial: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), x509.HostnameError{Certificate: new(x509.Certificate)},
		x509.CertificateInvalidError{Reason: x509.Expired}, tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, &net.OpError{Op: "dial", Net: "unix", Err: syscall.EACCES},
	} {
		curable := i < curables
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var seen events
				var asked, failed atomic.Int64
				s := New(Do(func(_ context.Context, commands [][]string) (replies []any) {
					asked.Add(1)
					if time.Sleep(time.Millisecond); time.Since(began) > 3*time.Second {
						return grants(commands)
					}
					for range commands {
						replies = append(replies, err)
					}
					return replies
				}), Config{Observe: seen.observe})
				var all sync.WaitGroup
				for i := range 600 {
					b := bucketOf(t, s, fmt.Sprint("key", i%10), still)
					all.Go(func() {
						at := time.Now()
						_, got := b.Acquire(context.Background(), outbound.Cost{1})
						require.LessOrEqual(t, time.Since(at), time.Second)
						if got != nil {
							failed.Add(1)
							require.ErrorIs(t, got, err)
							require.Equal(t, curable, errors.Is(got, store.ErrUnavailable))
						}
					})
					time.Sleep(10 * time.Millisecond)
				}
				all.Wait()
				time.Sleep(time.Minute) // until the pipelines have ended
				synctest.Wait()
				require.Positive(t, failed.Load())
				if curable {
					seen.await(t, store.EventDown)
					seen.await(t, store.EventUp)
					require.Len(t, seen.all, 2)
					require.Less(t, asked.Load(), int64(300+4*3*60))
				} else {
					require.Greater(t, failed.Load(), int64(250))
					seen.await(t, store.EventDenied)
					require.Len(t, seen.all, 1)
				}
			})
		})
	}
}
