package redisstore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spoil returns bytes that this package has not written, in the place of was.
func spoil(was string) map[string]string {
	bad := map[string]string{"nothing": "", "a byte": "x", "cut": was[:len(was)/2], "a number less": was[:max(0, len(was)-8)], "a byte more": was + "x", "text": strings.Repeat("x", len(was))}
	for at := 0; at+8 <= len(was); at += 8 {
		for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0.5, 1e18, 1e300, -1e300} {
			bad[fmt.Sprint(f, " at ", at)] = was[:at] + string(numbers(nil, f)) + was[at+8:]
		}
	}
	return bad
}

// Whatever a key holds, no more than the capacity is admitted, every operation has an answer, and a
// Resume opens the key.
func TestStore_CorruptDataNeitherOpensNorShutsAKey(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	ctx := context.Background()
	var reported atomic.Int64
	config := Config{Timeout: time.Minute, Observe: func(e store.StoreEvent) {
		if e.Kind == store.EventCorrupt {
			reported.Add(1)
		}
	}}
	limits := []store.Limit{{Name: "a", Capacity: 10, Rate: 1e-6}}
	maker := New(rdb, config)
	name := fmt.Sprint("garbage", rand.Uint64())
	key := maker.Key(name)
	book := &store.Op{Limits: limits, Number: 1, Action: store.Book, Costs: []store.Units{{1}}}
	r, err := maker.Update(ctx, name, book)
	require.NoError(t, err)
	for range 2 { // a row of refusals
		r, err = maker.Update(ctx, name, &store.Op{Limits: limits, Number: 1, Reports: []store.Report{{Kind: store.Succeeded, Epoch: r.State.Epoch}, {Kind: store.Refused, Epoch: r.State.Epoch, MaxWait: 1}}})
		require.NoError(t, err)
	}
	fields := rdb.HGetAll(ctx, key).Val()
	require.Contains(t, fields, "x")
	cases := 0
	for field, was := range fields {
		for why, bad := range spoil(was) {
			cases++
			require.NoError(t, rdb.Del(ctx, key).Err())
			spoiled := []any{field, bad}
			for f, v := range fields {
				if f != field {
					spoiled = append(spoiled, f, v)
				}
			}
			require.NoError(t, rdb.HSet(ctx, key, spoiled...).Err())
			s := maker
			if field[0] != 'w' {
				s = New(rdb, config)
			}
			admitted := 0
			for range 12 {
				r, err := s.Update(ctx, name, book)
				if field[0] == 'w' && err != nil { // its record says that it has done what it has not
					continue
				}
				require.NoError(t, err, "%q: %s", field, why)
				admitted += len(r.Charges)
			}
			require.LessOrEqual(t, admitted, 10, "%q: %s", field, why)
			_, err := s.Update(ctx, name, &store.Op{Limits: limits, Number: 1, Action: store.Resume})
			require.NoError(t, err, "%q: %s", field, why)
			r, err := s.Update(ctx, name, &store.Op{Limits: limits, Number: 1, Action: store.Book})
			require.NoError(t, err)
			require.LessOrEqual(t, r.State.Rem, time.Duration(0), "%q: %s", field, why)
			require.LessOrEqual(t, r.State.Level[0], 10., "%q: %s", field, why)
		}
	}
	t.Logf("%d cases, %d reported", cases, reported.Load())
}

// A key of another type is corrupt: it begins again, full.
func TestStore_KeyOfAnotherTypeBeginsFull(t *testing.T) {
	try := func(t *testing.T, rdb redis.UniversalClient) {
		ctx := context.Background()
		for _, command := range [][]any{{"SET", "", "hello"}, {"RPUSH", "", "hello"}, {"SADD", "", "hello"}, {"ZADD", "", 1, "hello"}} {
			corrupt := make(chan store.StoreEvent, 1)
			s := New(rdb, Config{Timeout: time.Minute, Observe: func(e store.StoreEvent) { corrupt <- e }})
			name := fmt.Sprint("type", rand.Uint64())
			command[1] = s.Key(name)
			require.NoError(t, rdb.Do(ctx, command...).Err())
			limits := []store.Limit{{Name: "a", Capacity: 10, Rate: 1}}
			r, err := s.Update(ctx, name, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}})
			require.NoError(t, err)
			require.True(t, r.Corrupt)
			require.True(t, r.Refused)
			require.Equal(t, store.StoreEvent{Kind: store.EventCorrupt, Key: name}, <-corrupt)
			r, err = s.Update(ctx, name, &store.Op{Limits: limits, Number: 1, Action: store.Book, Costs: []store.Units{{1}}, Wait: 1e10})
			require.NoError(t, err)
			require.Len(t, r.Charges, 1)
		}
	}
	redistest.Each(t, func(t *testing.T, _ string, rdb redis.UniversalClient) { try(t, rdb) })
	t.Run("cluster", func(t *testing.T) { try(t, redistest.SharedCluster(t).Client(t)) })
}
