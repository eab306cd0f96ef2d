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
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// ours returns the stacks of goroutines that run this package's code, except its tests.
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
	// This test counts goroutines, and time, so it does not run beside others.
	const callers, keys = 10_000, 100
	server := redistest.Start(t)
	var mu sync.Mutex
	dialled := 0
	rdb := server.Client(t, func(o *redis.Options) {
		o.OnConnect = func(context.Context, *redis.Conn) error { mu.Lock(); dialled++; mu.Unlock(); return nil }
		o.PoolSize = 20                                         // more than hang, also where the default, 10 for each processor, is not
		o.ReadTimeout, o.PoolTimeout = time.Minute, time.Minute // the client's own timeouts, far beyond the store's second
	})
	var told events
	s := redisstore.New(rdb, redisstore.Config{Observe: told.observe})
	var accounts []*account
	var buckets []*outbound.Bucket
	for k := range keys {
		a := newAccount(t, rdb, fmt.Sprint("hung:", k))
		accounts = append(accounts, a)
		buckets = append(buckets, a.bucket(t, s))
		require.Eventually(t, func() bool { _, err := buckets[k].State(t.Context()); return err == nil }, time.Minute, time.Millisecond)
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
	// A second, and the time that a busy machine takes to run ten thousand goroutines.
	require.Less(t, time.Duration(longest.Load()), 30*time.Second)

	// Later callers are answered at once, except the few that try the server.
	fast := 0
	for range 50 {
		began := time.Now()
		_, err := buckets[fast%keys].Acquire(t.Context(), outbound.Cost{1})
		require.True(t, isAway(err), "%v", err)
		if time.Since(began) < 500*time.Millisecond { // a caller that tries waits for a second
			fast++
		}
	}
	require.Greater(t, fast, 40)

	server.Cont(t)
	require.Eventually(t, func() bool {
		_, err := buckets[0].State(t.Context())
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	told.await(t, leak.EventUp)
	require.Eventually(t, func() bool { return len(ours()) == 0 }, time.Minute, 50*time.Millisecond, "left over: %v", ours())
	// The server charged the requests that had been sent, and no caller got those calls:
	// one call for each caller whose operation was in a request.
	charged := 0.
	for _, a := range accounts {
		charged += a.charged(t)
	}
	t.Logf("%v charged, %d connections", charged, dialled)
	require.LessOrEqual(t, charged, float64(callers)+50)
}
