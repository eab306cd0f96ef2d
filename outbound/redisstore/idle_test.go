package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestUnusedKeysAreForgottenWithoutNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"})
		rdb.AddHook(between(func(cmd redis.Cmder, _ func() error) error { return grant(cmd) }))
		s := redisstore.New(rdb, redisstore.Config{})
		ask := func(key string) {
			_, err := outbound.Must(outbound.NewSharedBucket(s, key, reset)).Acquire(context.Background(), outbound.Cost{1})
			require.NoError(t, err)
		}
		for round := range 2 { // the second round comes after the store has forgotten all keys
			for i := range 100 {
				ask(fmt.Sprint(i))
			}
			require.Equal(t, 100, s.Keys(), "round %d", round)
			for range 60 {
				time.Sleep(time.Minute)
				ask("used")
			}
			require.Equal(t, 1, s.Keys(), "round %d", round)
			time.Sleep(time.Hour)
			require.Zero(t, s.Keys(), "round %d", round)
		}
		require.NoError(t, rdb.Close())
		time.Sleep(5 * time.Minute)
	})
}

// A fixed window that is over comes back whole, but a worker with a moving one counts its calls for a window.
func TestAFixedWindowIsKeptForWhoHasAMovingOne(t *testing.T) {
	s := newMini(t)
	ctx := context.Background()
	var workers []*outbound.Bucket
	for _, l := range []outbound.Limit{outbound.FixedWindow(2, 10*time.Hour).Of(0, "calls"), outbound.Window(2, 10*time.Hour).Of(0, "calls")} {
		workers = append(workers, outbound.Must(outbound.NewSharedBucket(redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), "k", l)))
	}
	for range 2 {
		_, err := workers[0].Acquire(ctx, outbound.Cost{1})
		require.NoError(t, err)
		s.forward(9 * time.Hour)
	}
	_, err := workers[1].Acquire(ctx, outbound.Cost{2})
	require.ErrorIs(t, err, outbound.ErrThrottled)
}
