//go:build linux

package chaos

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue"
)

// minutely leaks one unit a minute, so nothing leaks while a test runs.
var minutely = outbound.Limit{Capacity: 3, LeakRate: 1. / 60}

// waiting returns a queue on a full bucket in a server.
func waiting(t *testing.T) (*queue.Queue, *outbound.Bucket) {
	t.Helper()
	b, err := outbound.NewSharedBucket(redisstore.New(redistest.Start(t).Client(t), redisstore.Config{Timeout: time.Minute}), "bucket", minutely)
	require.NoError(t, err)
	q := queue.New(b, queue.Config{})
	for range 3 {
		_, err := q.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
	}
	return q, b
}

// A call that cannot make its deadline is refused at once and charged nothing, both in
// front of calls that can make theirs and behind them.
func TestACallThatCannotMakeItsDeadlineIsRefusedAtOnceAndChargedNothing(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	q, b := waiting(t)
	patient, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 40 {
		if i == 5 {
			for range 5 { // these calls wait in the queue from here on
				wg.Go(func() {
					_, err := q.Acquire(patient, outbound.Cost{1})
					if !errors.Is(err, context.Canceled) {
						t.Errorf("who waits ended with %v", err)
					}
				})
			}
			eventually(t, "they wait", func() bool { return q.Len() == 5 })
		}
		deadline := d.between(15*time.Second, 50*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		from := time.Now()
		_, err := q.Acquire(ctx, outbound.Cost{1})
		took := time.Since(from)
		cancel()
		var full *outbound.ThrottledError
		require.ErrorAs(t, err, &full)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, full.RetryAfter, deadline-took)
		require.Less(t, took, 10*time.Second)
	}
	cancel()
	wg.Wait()
	// The place of the first waiting call goes back, because it was the last booking.
	eventually(t, "nothing is charged for calls that have not gone", func() bool {
		s, err := b.State(t.Context())
		require.NoError(t, err)
		return s.Level <= 3.001
	})
}

func TestCloseEndsAllCallsThatWaitForAStore(t *testing.T) {
	t.Parallel()
	q, b := waiting(t)
	var wg sync.WaitGroup
	var closed atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	for range 1000 {
		wg.Go(func() {
			if _, err := q.Acquire(ctx, outbound.Cost{1}); errors.Is(err, queue.ErrClosed) {
				closed.Add(1)
			}
		})
	}
	eventually(t, "they wait", func() bool { return q.Len() == 1000 })
	require.NoError(t, q.Close())
	eventually(t, "all who wait are told", func() bool { return closed.Load() == 1000 })
	require.NoError(t, q.Close())
	_, err := q.Acquire(t.Context(), outbound.Cost{1})
	require.ErrorIs(t, err, queue.ErrClosed)
	eventually(t, "their place goes back", func() bool {
		s, err := b.State(t.Context())
		require.NoError(t, err)
		return s.Level <= 3.001
	})
	require.Zero(t, q.Len())
}
