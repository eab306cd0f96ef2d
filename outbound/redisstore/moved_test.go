package redisstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// unanswered fails all other commands.
type unanswered struct{ between }

func (unanswered) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(said("ERR unknown command"))
		return cmd.Err()
	}
}

func TestANodeThatIsReplacedIsToldAsBack(t *testing.T) {
	t.Run("it fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { replaced(t, 0, 5*time.Second, 0) })
	})
	t.Run("it hangs", func(t *testing.T) { // all attempts hang, so the node is known to be away before the other one is known
		synctest.Test(t, func(t *testing.T) { replaced(t, time.Minute, 1900*time.Millisecond, 0) })
	})
	t.Run("nobody asks for its keys again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { replaced(t, 0, 5*time.Second, 3*time.Second) })
	})
}

// replaced makes a caller use ten keys of a cluster for 20 s. After a second the only node
// fails each request after hangs, and a replica takes over after promotion. With rests, the
// caller rests from that time on until other users of its client have noticed, and then uses
// other keys.
func replaced(t *testing.T, hangs, promotion, rests time.Duration) {
	began := time.Now()
	promoted := func() bool { return time.Since(began) > promotion }
	const old, now = "192.0.2.1:1", "192.0.2.2:1"
	var failed atomic.Int64
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			node := old
			if promoted() {
				node = now
			}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: node}}}}, nil
		},
		NewClient: func(o *redis.Options) *redis.Client {
			node := redis.NewClient(o)
			node.AddHook(between(func(cmd redis.Cmder, _ func() error) error {
				time.Sleep(time.Millisecond)
				if o.Addr == old && time.Since(began) > time.Second { // from then on
					failed.Add(1)
					time.Sleep(hangs)
					err := said("LOADING Redis is loading the dataset in memory")
					cmd.SetErr(err)
					return err
				}
				return grant(cmd)
			}))
			node.AddHook(unanswered{})
			return node
		},
	})
	var mu sync.Mutex
	var told []leak.StoreEventKind
	s := redisstore.New(rdb, redisstore.Config{Observe: func(e leak.StoreEvent) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, e.Kind)
	}})
	for i := 0; time.Since(began) < 20*time.Second; i++ {
		if rests > 0 && time.Since(began) > rests {
			time.Sleep(5 * time.Second)
			rdb.ReloadState(t.Context())
			time.Sleep(time.Second)
			i, rests = 10_000, 0
		}
		b := outbound.Must(outbound.NewSharedBucket(s, string(rune('a'+i/10_000*10+i%10)), reset))
		_, err := b.Acquire(context.Background(), outbound.Cost{1})
		if err != nil {
			require.ErrorIs(t, err, outbound.ErrAway)
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	require.Positive(t, failed.Load())
	require.Equal(t, []leak.StoreEventKind{leak.EventDown, leak.EventUp}, told)
	require.NoError(t, rdb.Close())
	time.Sleep(5 * time.Minute)
}
