package redisstore_test

import (
	"context"
	"fmt"
	"runtime"
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
)

// ours returns the stacks of goroutines that run this package's code, tests aside.
func ours() (stacks []string) {
	buf := make([]byte, 64<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "redisstore.(*") && !strings.Contains(stack, "redisstore_test.") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func TestAHungServerKeepsNobodyWaiting(t *testing.T) {
	// Not beside others: it counts goroutines, and time.
	const callers, keys = 10_000, 100
	server := redistest.Start(t)
	var mu sync.Mutex
	dialled := 0
	rdb := server.Client(t, func(o *redis.Options) {
		o.OnConnect = func(context.Context, *redis.Conn) error { mu.Lock(); dialled++; mu.Unlock(); return nil }
		o.ReadTimeout, o.PoolTimeout = time.Minute, time.Minute // of its own, far beyond the store's second
	})
	var told events
	s := redisstore.New(rdb, redisstore.Config{Observe: told.observe})
	var accounts []*account
	var buckets []*outbound.Bucket
	for k := range keys {
		a := newAccount(t, rdb, fmt.Sprint("hung:", k))
		accounts = append(accounts, a)
		buckets = append(buckets, a.bucket(t, s))
		_, err := buckets[k].State(t.Context())
		require.NoError(t, err)
	}
	server.Stop(t)
	var ready, done sync.WaitGroup
	var longest, granted atomic.Int64
	start := make(chan struct{})
	var wrong atomic.Value
	for i := range callers {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			began := time.Now()
			_, err := buckets[i%keys].Acquire(t.Context(), outbound.Cost{1})
			for took := int64(time.Since(began)); ; {
				if was := longest.Load(); was >= took || longest.CompareAndSwap(was, took) {
					break
				}
			}
			if err == nil {
				granted.Add(1)
			} else if !isAway(err) {
				wrong.Store(err)
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	t.Logf("%d callers were answered within %v", callers, time.Duration(longest.Load()))
	require.Nil(t, wrong.Load())
	require.Zero(t, granted.Load())
	// A second, and what a busy machine takes to run ten thousand goroutines.
	require.Less(t, time.Duration(longest.Load()), 30*time.Second)

	// Whoever comes now is answered at once, but for the few that try.
	fast := 0
	for range 50 {
		began := time.Now()
		_, err := buckets[fast%keys].Acquire(t.Context(), outbound.Cost{1})
		require.True(t, isAway(err), "%v", err)
		if time.Since(began) < 500*time.Millisecond { // who tries waits for a second
			fast++
		}
	}
	require.Greater(t, fast, 40)

	server.Cont(t)
	require.Eventually(t, func() bool {
		_, err := buckets[0].State(t.Context())
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	told.await(t, redisstore.EventBack)
	require.Eventually(t, func() bool { return len(ours()) == 0 }, time.Minute, 50*time.Millisecond, "left over: %v", ours())
	// What had been sent was charged, and nobody got it: a call for each that went along.
	charged := 0.
	for _, a := range accounts {
		charged += a.charged(t)
	}
	t.Logf("%v charged, %d connections", charged, dialled)
	require.LessOrEqual(t, charged, float64(callers)+50)
}
