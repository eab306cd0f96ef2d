package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// This happens while a release with a higher rate rolls out. Both workers keep
// going, and the places that they book do not move ever further away.
func TestWorkersThatBookUnderDifferentRatesOfOneLimitKeepGoing(t *testing.T) {
	s := newMini(t)
	now := time.Unix(0, 0) // the calls' places are compared by it
	ctx, key := context.Background(), fmt.Sprint(t.Name(), rand.Uint64())
	rates := []float64{10, 40}
	var workers []*outbound.Bucket
	for _, rate := range rates {
		b, err := outbound.NewSharedBucket(redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), key, outbound.Limit{Capacity: 1, LeakRate: rate})
		require.NoError(t, err)
		workers = append(workers, b)
	}
	var all outboundtest.History
	due := []time.Time{now, now}
	calls, end := 0, now.Add(time.Minute)
	for now.Before(end) {
		for i, b := range workers {
			if due[i].After(now) {
				continue
			}
			// The place booked before is due: its call goes, and the worker
			// books the next.
			k := outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: time.Minute}
			require.NoError(t, b.Book(ctx, &k))
			due[i] = now.Add(time.Until(k.Clock.Due(k.Tickets[0])).Round(time.Millisecond))
			all.Add(due[i], 1)
			calls++
		}
		now = now.Add(5 * time.Millisecond)
		s.forward(5 * time.Millisecond)
	}
	require.NoError(t, all.Check(2, 50, 3), "beyond the sum of both")
	require.Greater(t, calls, 600, "calls in a minute, of 600 at the lower rate and 2400 at the higher")
}
