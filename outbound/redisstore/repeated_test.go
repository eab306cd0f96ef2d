package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/redisstore/internal/redistest"
)

func TestARefusalWhoseReplyIsLostIsTheSameRefusal(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Shared(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{})
	b, err := outbound.NewSharedBucket(s, fmt.Sprint(t.Name(), rand.Uint64()), outbound.Limit{Capacity: 1, LeakRate: 0.01})
	require.NoError(t, err)
	p, err := b.Acquire(context.Background(), outbound.Cost{1})
	require.NoError(t, err)
	p.Done() // the success rides on the next request, which so changes something

	var lost atomic.Int32
	proxy.Set(redistest.Faults{DropReplies: 1, Only: func(words []string) bool {
		return words[0] == "EVALSHA" && lost.Add(1) <= 2
	}})
	_, err = b.Acquire(context.Background(), outbound.Cost{1})
	var full *outbound.ThrottledError
	require.True(t, errors.As(err, &full), "%v", err)
	require.InDelta(t, 100, full.RetryAfter.Seconds(), 5)
	require.GreaterOrEqual(t, lost.Load(), int32(3))

	k := outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: time.Second}
	q, err := b.Acquire(context.Background(), outbound.Cost{1})
	require.Error(t, err)
	q.Done()
	lost.Store(0)
	b2, err := outbound.NewSharedBucket(s, fmt.Sprint(t.Name(), rand.Uint64()), outbound.Limit{Capacity: 1, LeakRate: 0.01})
	require.NoError(t, err)
	p, err = b2.Acquire(context.Background(), outbound.Cost{1})
	require.NoError(t, err)
	p.Done()
	lost.Store(0)
	err = b2.Book(context.Background(), &k)
	require.True(t, errors.As(err, &full), "%v", err)
	require.Empty(t, k.Tickets)
	require.InDelta(t, 100, full.RetryAfter.Seconds(), 5)
}
