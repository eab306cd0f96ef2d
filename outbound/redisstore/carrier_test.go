package redisstore

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// open returns a store of its own on a server, through a proxy or not.
func open(t testing.TB, addr string, c Config) *Store {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return New(rdb, c)
}

// stored returns a key as the server has it.
func stored(t testing.TB, rdb redis.Cmdable, name string) *store.Stored {
	v, err := rdb.HMGet(context.Background(), name, "s", "v", "u", "g").Result()
	require.NoError(t, err)
	text := func(i int) string { s, _ := v[i].(string); return s }
	return &readRow(text(0), text(1)+text(2), text(3)).stored
}

// A call is charged exactly once although three of ten replies and one of ten requests are lost,
// by hot steps and by swaps.
func TestStore_ChargesOnceOnABadLine(t *testing.T) {
	server := redistest.Start(t)
	calls := 500
	if os.Getenv("DRIPFEED_LONG") != "" {
		calls = 10_000
	}
	line := redistest.NewProxy(t, server.Addr())
	line.Set(redistest.Faults{DropReplies: 0.3, DropRequests: 0.1})
	limits := []store.Limit{{Name: "a", Capacity: 1e6, Rate: 1e-3}}
	const workers, each = 5, 5
	var all sync.WaitGroup
	var booked, back atomic.Int64
	// Of a call that found the level below what was returned since, nothing is returned.
	const before = 10_000
	first := open(t, server.Addr(), Config{Timeout: time.Minute})
	key := first.Key("k")
	_, err := first.Update(t.Context(), "k", &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{before}}})
	require.NoError(t, err)
	for i := range workers {
		s := open(t, line.Addr(), Config{Timeout: time.Minute})
		all.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(i), 1))
			for n := 0; n < calls/workers; n += each {
				op := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}, {1}, {1}, {1}, {1}}}
				if dice.IntN(20) == 0 { // a swap
					op.Reports = []store.Report{{Kind: store.Remaining, Used: store.Units{1e5}}}
				}
				r, err := s.Update(context.Background(), "k", op)
				if err != nil || len(r.Charges) != each {
					t.Errorf("%d charges, error %v", len(r.Charges), err)
					return
				}
				booked.Add(each)
				if dice.IntN(4) == 0 {
					if _, err = s.Update(context.Background(), "k", &store.Op{Limits: limits, Action: store.Book, Unused: r.Charges[each-1:]}); err != nil {
						t.Error(err)
						return
					}
					back.Add(1)
				}
			}
		})
	}
	all.Wait()
	got := stored(t, server.Client(t), key).State.Level[0] - before
	t.Logf("booked %d, returned %d, level %v, lost %d", booked.Load(), back.Load(), got, line.Lost())
	require.Positive(t, line.Lost())
	require.EqualValues(t, calls, booked.Load())
	require.InDelta(t, float64(booked.Load()-back.Load()), math.Ceil(got), 0.5)
}

// sender returns a function that sends a step on a key of its own, and reads the reply.
func sender(t *testing.T, rdb *redis.Client) (*key, func(q *request) answer) {
	return &key{name: strconv.FormatUint(rand.Uint64(), 36)}, func(q *request) answer {
		q.unknown.Store(true)
		value, err := rdb.Do(t.Context(), q.command()...).Result()
		require.NoError(t, err)
		a, err := q.read(value, nil, new(store.Reply))
		require.NoError(t, err)
		return a
	}
}

// A step whose failure its caller has seen is not carried out after a later one of the same store.
func TestStore_CarriesOutNoGhost(t *testing.T) {
	rdb := redistest.Start(t, "--save", "").Client(t) // in a miniredis the script makes no step
	k, send := sender(t, rdb)
	limits := []store.Limit{{Name: "a", Capacity: 10, Rate: 1}}
	book := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}}
	first := send(compose(k, "worker", book, 1, false, 0, 0))
	require.NoError(t, first.err)
	k.row = first.row
	ghost := compose(k, "worker", book, 2, false, first.now, 0)
	look := send(compose(k, "worker", &store.Op{Limits: limits}, 3, true, first.now, 0))
	require.NoError(t, look.err)
	require.ErrorIs(t, send(ghost).err, errOld)
	slow := compose(k, "other", book, 2, false, first.now-2*time.Second, 0)
	require.ErrorIs(t, send(slow).err, errLate)
	require.InDelta(t, 1, stored(t, rdb, k.name.(string)).State.Level[0], 0.5)
}

// A reply that comes again is the first reply, however the key has changed since.
func TestStore_RepeatsItsReply(t *testing.T) {
	k, send := sender(t, redistest.Start(t, "--save", "").Client(t)) // in a miniredis the script makes no step
	limits := []store.Limit{{Name: "a", Capacity: 10, Rate: 1}, {Name: "b", Unit: 1, Capacity: 5, Rate: 2}}
	op := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{2, 1}, {3, 3}, {9, 1}}, Horizon: time.Minute, Claim: 1}
	q := compose(k, "worker", op, 7, false, 0, 0)
	want := send(q)
	require.Len(t, want.reply.Charges, 3)
	k.row = want.row
	for seq, other := range []*store.Op{
		{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}, Wait: time.Minute, Reports: []store.Report{{Kind: store.Refused, Epoch: want.reply.State.Epoch}}},
		{Limits: limits, Number: 1, Action: store.Resume},
		{Limits: limits, Number: 1, Action: store.Replace, Replacement: []store.Limit{{Name: "c", Capacity: 1, Rate: 1}}},
	} {
		a := send(compose(k, "other", other, int64(seq+1), false, want.now, 0))
		require.NoError(t, a.err)
		k.row = a.row
		got := send(q)
		require.True(t, got.repeated)
		got.reply.State.Unix = want.reply.State.Unix
		require.Equal(t, want.reply, got.reply)
	}
}

// A server that answers anything else is reported as such.
func TestStore_TrustsNoReply(t *testing.T) {
	limits := []store.Limit{{Name: "a", Capacity: 10, Rate: 1}}
	op := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}}
	nan := string(numbers(nil, math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()))
	for _, value := range []any{
		nil, int64(1), "", "x", nan, nan + nan, string(numbers(nil, 0, 1, 5, 2, 0)), string(numbers(nil, 0, 1, 5, 1, 1e9)), []any{}, []any{"look"}, []any{"look", int64(1), int64(0)},
		[]any{"again", int64(1), int64(0), nan}, []any{"done", int64(1), int64(0)}, []any{"same", int64(1), int64(0)}, []any{"what", int64(1), int64(0)},
		[]any{"look", int64(-1), int64(0), "", "", ""}, []any{int64(1), "look", ""},
	} {
		q := compose(&key{name: "k"}, "worker", op, 1, false, 0, 0)
		_, err := q.read(value, nil, new(store.Reply))
		require.True(t, errors.Is(err, errReply), "%q: %v", value, err)
	}
}
