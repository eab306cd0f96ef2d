package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Batch work in one process uses the limit but for its Headroom. Users in another one find that at
// once, however much batch work waits.
func TestHeadroom_UsersBeforeBatch(t *testing.T) {
	x := newTables(t, theServer(t))
	limit := outbound.Window(20, time.Hour)
	batch := queue.New(bucket(x.store(t), "key", limit), queue.Config{Headroom: 0.6})
	users := bucket(x.store(t), "key", limit)
	ctx, cancel := context.WithCancel(bg)
	left := make(chan struct{}, 100)
	for range 30 {
		go func() {
			if p, err := batch.Acquire(ctx, outbound.Cost{1}); err == nil {
				p.Done()
				left <- struct{}{}
			}
		}()
	}
	require.Eventually(t, func() bool { return len(left) == 8 }, patience, 10*time.Millisecond)
	for range 12 {
		p, err := users.Acquire(bg, outbound.Cost{1})
		require.NoError(t, err)
		p.Done()
	}
	_, err := users.Acquire(bg, outbound.Cost{1})
	require.ErrorIs(t, err, outbound.ErrThrottled)
	require.Len(t, left, 8)
	cancel()
	require.NoError(t, batch.Close())
}
