package redisstore_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// instead answers a client in place of its server.
type instead func(cmd redis.Cmder) error

func (f instead) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f instead) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		err := f(cmd)
		cmd.SetErr(err)
		return err
	}
}

func (f instead) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			err := f(cmd)
			cmd.SetErr(err)
			if first == nil {
				first = err
			}
		}
		return first
	}
}

const (
	masterNode  = "192.0.2.1:1"
	replicaNode = "192.0.2.2:1"
)

// pair is a cluster of a master and its replica. From some time on the master hangs, and
// the replica does what the test says.
type pair struct {
	hung  atomic.Bool
	pings atomic.Int64
}

// client returns a client that ignores deadlines, as go-redis does by default.
func (p *pair) client(replica func(cmd redis.Cmder) error) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{masterNode},
		NewClient: func(o *redis.Options) *redis.Client {
			node := redis.NewClient(o)
			node.AddHook(instead(func(cmd redis.Cmder) error {
				name := strings.ToLower(cmd.Name())
				if name == "ping" {
					p.pings.Add(1)
				}
				switch {
				case name == "command": // the client asks this once, and remembers the answer
					cmd.(*redis.CommandsInfoCmd).SetVal(map[string]*redis.CommandInfo{"eval": {}, "evalsha": {}})
					return nil
				case p.hung.Load() && o.Addr == replicaNode:
					return replica(cmd)
				case p.hung.Load():
					return hang()
				case name == "cluster":
					slots := []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: masterNode}, {Addr: replicaNode}}}}
					cmd.(*redis.ClusterSlotsCmd).SetVal(slots)
					return nil
				case strings.HasPrefix(name, "eval"):
					return grant(cmd)
				}
				return said("ERR unknown command")
			}))
			return node
		},
	})
}

func hang() error {
	time.Sleep(5 * time.Second)
	return context.DeadlineExceeded
}

func TestNobodyWaitsForAReplicaThatHangsWithItsMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pair
		var s *redisstore.Store
		rdb := p.client(func(redis.Cmder) error {
			// Others hold the lock for a moment. A caller who waited for the replica
			// would hold it for good, and then the bubble's time would stand still.
			for range 1_000_000 {
				if !s.Locked() {
					return hang()
				}
				runtime.Gosched()
			}
			t.Error("a lock is held while the client asks a replica")
			return context.DeadlineExceeded
		})
		s = redisstore.New(rdb, redisstore.Config{})
		ask := func(ctx context.Context, key int) error {
			_, err := outbound.Must(outbound.NewSharedBucket(s, fmt.Sprint(key), reset)).Acquire(ctx, outbound.Cost{1})
			return err
		}
		for key := range 10 {
			require.NoError(t, ask(t.Context(), key))
		}
		p.hung.Store(true)
		began := time.Now()
		var calls sync.WaitGroup
		for key := range 10 {
			for _, within := range []time.Duration{300 * time.Millisecond, time.Minute} {
				calls.Go(func() {
					for time.Since(began) < 20*time.Second {
						ctx, cancel := context.WithTimeout(context.Background(), within)
						from := time.Now()
						err := ask(ctx, key)
						cancel()
						if took := time.Since(from); err == nil || took > min(within, time.Second) {
							t.Errorf("a call ended after %v with %v", took, err)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
		}
		calls.Wait()
		require.Positive(t, p.pings.Load())
		time.Sleep(time.Minute)
		require.NoError(t, rdb.Close())
		time.Sleep(5 * time.Minute)
	})
}

func TestAReplicaIsAskedAsSoonAsItIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pair
		rdb := p.client(func(cmd redis.Cmder) error { // the replica was promoted, and the client does not know it
			time.Sleep(time.Millisecond)
			switch name := strings.ToLower(cmd.Name()); {
			case name == "cluster":
				return hang()
			case strings.HasPrefix(name, "eval"):
				return grant(cmd)
			}
			return nil
		})
		b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "key", reset))
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		p.hung.Store(true)
		began := time.Now()
		_, err = b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 252*time.Millisecond) // a quarter of the timeout, and two trips
		time.Sleep(time.Minute)
		require.NoError(t, rdb.Close())
		time.Sleep(5 * time.Minute)
	})
}

func TestAnswersTakeNoSharedLockWhileAllNodesAreWell(t *testing.T) {
	t.Parallel()
	var p pair
	rdb := p.client(nil)
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	b := outbound.Must(outbound.NewSharedBucket(s, "key", reset))
	_, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	free := s.HoldServers()
	defer free()
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), outbound.Cost{1})
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("an answer waits for the lock that all servers share")
	}
}
