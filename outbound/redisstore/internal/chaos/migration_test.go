//go:build linux

package chaos

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// returns is a store that counts what callers give back because a reply came too late.
// On a busy machine any reply may be too late. The store takes back only as much of it
// as is safe.
type returns struct {
	store.Store
	n *atomic.Int64
}

func (r returns) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	reply, err := r.Store.Update(ctx, key, op)
	if !reply.Stale || reply.Reported {
		r.n.Add(int64(len(op.Unused)))
	}
	return reply, err
}

// The slots of several buckets move from master to master while processes use them. Each call is
// charged exactly once, none fails, and a fleet keeps its limits.
func TestMigration_ChargesEachCallOnce(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := redistest.SharedCluster(t)
	f := newFleet(t, leaky, window)
	f.addSome(3, func() redis.UniversalClient { return c.Client(t) }, role{timeout: time.Minute}) // the machine may be busy
	keys := []string{"one", "two", "three", "four"}
	// All keys have one tag, and so one slot.
	config := redisstore.Config{Prefix: "{" + d.tag() + "}", Timeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var made [4]tally
	var late [4]atomic.Int64
	var buckets [4]*outbound.Bucket
	for range 3 {
		s := redisstore.New(c.Client(t), config)
		for k, key := range keys {
			b, err := outbound.NewSharedBucket(returns{s, &late[k]}, key, counter)
			require.NoError(t, err)
			buckets[k] = b
			for range 2 {
				wg.Go(func() {
					for ctx.Err() == nil {
						// On a busy machine an answer may come too late to be used: then the call
						// goes back.
						if err := made[k].acquire(b); err != nil && !strings.Contains(err.Error(), "come too late") {
							t.Error(err)
							return
						}
						nap(ctx, time.Millisecond)
					}
				})
			}
		}
	}
	goOn := func() {
		want := made[0].confirmed.Load() + 20
		eventually(t, "calls are admitted", func() bool { return made[0].confirmed.Load() >= want })
		f.goesOn(20)
	}
	for range 3 {
		for _, name := range []string{redisstore.New(nil, config).Key(keys[0]), f.members[0].store.Key(f.key)} {
			goOn()
			m := c.Migrate(t, name, c.Master(t, c.Owner(t, name)))
			time.Sleep(d.between(0, 50*time.Millisecond))
			for range d.IntN(len(keys)) {
				m.Move(t, 1)
				time.Sleep(d.between(0, 50*time.Millisecond))
			}
			m.Finish(t)
		}
	}
	goOn()
	cancel()
	wg.Wait()
	for k, key := range keys {
		s, err := buckets[k].State(t.Context())
		require.NoError(t, err)
		n, back := float64(made[k].confirmed.Load()), float64(late[k].Load())
		t.Logf("%s: admitted %v, charged %.3f, given back %v", key, n, s.Level, back)
		require.GreaterOrEqual(t, s.Level, n-0.5)
		require.LessOrEqual(t, s.Level, n+back+0.5)
	}
	for _, m := range f.members {
		n, err := m.failed()
		require.Zero(t, n, "%v", err)
	}
	f.check(nothing)
	require.Len(t, f.lives(), 1)
}
