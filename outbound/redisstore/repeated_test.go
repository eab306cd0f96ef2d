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
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestARefusalWhoseReplyIsLostIsTheSameRefusal(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Shared(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	b, err := outbound.NewSharedBucket(s, fmt.Sprint(t.Name(), rand.Uint64()), outbound.Limit{Capacity: 1, LeakRate: 0.01})
	require.NoError(t, err)
	p, err := b.Acquire(context.Background(), outbound.Cost{1})
	require.NoError(t, err)
	p.Done() // the success goes with the next request, which therefore changes something

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

func TestARepeatedGrantComesBackWhole(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Shared(t).Addr())
	for !grantedAgain(t, proxy) {
		t.Log("the machine was too slow")
	}
}

// grantedAgain reports whether the test was fast enough: bookings of more than 100 ms
// ago have left, and do not come back whole.
func grantedAgain(t *testing.T, proxy *redistest.Proxy) bool {
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	limits := []outbound.Limit{{Capacity: 10, LeakRate: 1e-6}, outbound.Limit{Capacity: 30, LeakRate: 1e-6}.Of(1, "")}
	b, err := outbound.NewSharedBucket(s, fmt.Sprint(t.Name(), rand.Uint64()), limits...)
	require.NoError(t, err)
	levels := func(want ...float64) {
		t.Helper()
		states, err := b.States(context.Background())
		require.NoError(t, err)
		for i := range want {
			require.InDelta(t, want[i], states[i].Level, 1e-3)
		}
	}
	p, err := b.Acquire(context.Background(), outbound.Cost{3, 5})
	require.NoError(t, err)
	p.Settle(outbound.Cost{1, 1}) // so that something has come back before
	levels(1, 1)
	lose := func(call func() error) {
		t.Helper()
		var lost atomic.Int32
		proxy.Set(redistest.Faults{DropReplies: 1, Only: func(words []string) bool {
			return words[0] == "EVALSHA" && lost.Add(1) == 1
		}})
		require.NoError(t, call())
		require.GreaterOrEqual(t, lost.Load(), int32(2))
		proxy.Set(redistest.Faults{})
	}
	lose(func() (err error) { p, err = b.Acquire(context.Background(), outbound.Cost{4, 8}); return err })
	levels(5, 9)
	p.Settle(outbound.Cost{0.5, 1})
	levels(1.5, 2)
	k := outbound.Booking{Costs: []outbound.Cost{{2, 3}, {3, 0}, {1, 20}}, Wait: time.Hour, Horizon: time.Hour}
	booked := time.Now()
	lose(func() error { return b.Book(context.Background(), &k) })
	require.Len(t, k.Tickets, 3)
	levels(7.5, 25)
	require.NoError(t, b.Book(context.Background(), &outbound.Booking{Back: []outbound.Ticket{k.Tickets[0], k.Tickets[2]}}))
	if time.Since(booked) > 90*time.Millisecond {
		return false
	}
	levels(4.5, 2)
	require.NoError(t, b.Book(context.Background(), &outbound.Booking{Back: k.Tickets[1:2]}))
	levels(1.5, 2)
	return true
}
