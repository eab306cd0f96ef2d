package redisstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// before is a hook that go-redis calls before each command, with its number.
type before func(n int64)

func (f before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	var n atomic.Int64
	return func(ctx context.Context, cmd redis.Cmder) error {
		f(n.Add(1))
		return next(ctx, cmd)
	}
}

func (f before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// One trip gives a place back. The next trip makes the caller's own call, and finds that
// a worker has set other limits. The place is not given back again.
func TestAStaleAnswerTellsThatTheReportsWentBefore(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.rdb.Options().Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	other := outbound.Must(outbound.NewSharedBucket(redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), "key", outbound.Limit{Capacity: 30, LeakRate: 1e-6}))
	limits := []leak.Limit{{Capacity: 30, Rate: 1e-6}}
	ask := func(op *leak.Op) leak.Reply {
		op.Limits = limits
		r, err := store.Update(context.Background(), "key", op)
		if err != nil {
			t.Error(err)
		}
		return r
	}
	pending := func(n int) {
		for until := time.Now().Add(time.Minute); store.Pending("key") != n; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Errorf("%d operations wait, want %d", store.Pending("key"), n)
				return
			}
		}
	}
	require.Len(t, ask(&leak.Op{Action: leak.Book, Costs: []leak.Units{{20}}}).Charges, 1)
	charges := ask(&leak.Op{Action: leak.Book, Costs: []leak.Units{{5}}}).Charges
	require.Len(t, charges, 1)

	started := make(chan struct{})
	rdb.AddHook(before(func(n int64) {
		switch n {
		case 1: // meanwhile two calls come, and go together
			close(started)
			pending(2)
		case 3: // the second call's own trip
			if err := other.SetLimits(context.Background(), outbound.Limit{Capacity: 40, LeakRate: 1e-6}); err != nil {
				t.Error(err)
			}
		}
	}))
	replies := make(chan leak.Reply, 3)
	go func() { replies <- ask(&leak.Op{}) }()
	<-started
	go func() { replies <- ask(&leak.Op{Action: leak.Book, Costs: []leak.Units{{15}}}) }() // this call has no room
	pending(1)
	var last leak.Reply
	done := make(chan struct{})
	go func() {
		defer close(done)
		last = ask(&leak.Op{Action: leak.Book, Costs: []leak.Units{{1}}, Back: charges})
	}()
	<-done
	<-replies
	<-replies
	require.True(t, last.Stale)
	require.True(t, last.Reported)
	require.NotZero(t, last.Stamp)
	require.Equal(t, []leak.Limit{{Capacity: 40, Rate: 1e-6}}, last.Limits)
	state, err := other.State(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 20, state.Level, 1e-3)

	// A bucket treats the answer correctly.
	b := outbound.Must(outbound.NewSharedBucket(punctual(store), "key", outbound.Limit{Capacity: 30, LeakRate: 1e-6}))
	_, err = b.Acquire(t.Context(), outbound.Cost{20})
	require.NoError(t, err)
	_, err = b.Acquire(t.Context(), outbound.Cost{1})
	require.ErrorIs(t, err, outbound.ErrThrottled)
}

// The report of a caller who has gone is lost if limits were set meanwhile. The store
// tells of it.
func TestAReportWithoutACallerIsToldAsLostUnderOtherLimits(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.rdb.Options().Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	var told events
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
	other := outbound.Must(outbound.NewSharedBucket(redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), "key", outbound.Limit{Capacity: 30, LeakRate: 1}))
	limits := []leak.Limit{{Capacity: 30, Rate: 1}}
	_, err := store.Update(t.Context(), "key", &leak.Op{Limits: limits}) // the server learns the script
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	rdb.AddHook(before(func(n int64) {
		if n > 1 {
			return
		}
		if err := other.SetLimits(context.Background(), outbound.Limit{Capacity: 40, LeakRate: 1}); err != nil {
			t.Error(err)
		}
		cancel()
		<-gone
	}))
	_, err = store.Update(ctx, "key", &leak.Op{Limits: limits, Reports: []leak.Report{{Kind: leak.Held, Wait: time.Hour}}})
	close(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "key", told.await(t, leak.EventLost).Key)
	state, err := other.State(t.Context())
	require.NoError(t, err)
	require.Zero(t, state.HeldFor)
}
