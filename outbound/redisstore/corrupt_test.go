package redisstore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spoiled is a wrong value of a key's field, and what is wrong with it. It is sure if nobody can
// take it for a value that the script has written.
type spoiled struct {
	why, value string
	sure       bool
}

// spoil returns wrong values instead of was, which has numbers after its head: of other lengths,
// with other text, with other numbers.
func spoil(was string, head int) (all []spoiled) {
	all = append(all, spoiled{"text", strings.Repeat("x", len(was)), true})
	for n := range len(was) + 20 {
		if n > 3 && n%8 > 1 {
			continue
		}
		if n != len(was) {
			all = append(all, spoiled{fmt.Sprint("cut or filled to ", n), (was + strings.Repeat("x", 20))[:n], true})
		}
		all = append(all, spoiled{fmt.Sprint(n, " bytes of text"), strings.Repeat("x", n), true})
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 0.5, 1e18, 1e300, -1e300} {
		for at := 0; at+8 <= len(was); at += 8 {
			all = append(all, spoiled{fmt.Sprint(f, " at ", at), was[:at] + string(numbers(nil, f)) + was[at+8:], false})
		}
		for at := range decode(was[min(head, len(was)):]) {
			some := decode(was[head:])
			some[at] = f
			all = append(all, spoiled{fmt.Sprint(f, " as number ", at), was[:head] + string(numbers(nil, some...)), false})
		}
	}
	return all
}

// Whatever a key holds, no more than the capacity is admitted, every operation has an answer, and a
// Resume opens the key. What no process can have written is full, and is reported once.
func TestStore_CorruptDataNeitherOpensNorShutsAKey(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	ctx := context.Background()
	long := store.Period{Begin: 3_600, End: 4e9, Next: 4.5e9}
	for kind, limit := range map[string]store.Limit{
		"leaky":    {Name: "a", Capacity: 10, Rate: 1e-6},
		"window":   {Name: "a", Capacity: 10, Rate: 10. / 3600, Window: time.Hour, Kind: store.Window},
		"fixed":    {Name: "a", Capacity: 10, Rate: 10. / 3600, Window: time.Hour, Kind: store.Fixed},
		"calendar": {Name: "a", Capacity: 10, Kind: store.Monthly, Zone: "UTC"},
	} {
		limits := []store.Limit{limit}
		step := func(s *Store, name string, op store.Op) (store.Reply, error) {
			op.Limits, op.Number, op.Periods = limits, 1, []store.Period{long}
			s.engine.Forget(name)
			return s.Update(ctx, name, &op)
		}
		book := store.Op{Action: store.Book, Costs: []store.Units{{1}}}
		maker := New(rdb, Config{Timeout: time.Minute})
		name := fmt.Sprint("corrupt ", rand.Uint64())
		key := maker.Key(name)
		r, err := step(maker, name, book)
		require.NoError(t, err)
		for range 2 { // a row of refusals
			r, err = step(maker, name, store.Op{Reports: []store.Report{{Kind: store.Succeeded, Epoch: r.State.Epoch}, {Kind: store.Refused, Epoch: r.State.Epoch, MaxWait: 1}}})
			require.NoError(t, err)
		}
		fields := rdb.HGetAll(ctx, key).Val()
		worker := maker.carrier.worker.Load().(string)
		if kind == "window" { // which has left two calls
			is := stored(t, rdb, key)
			slot := is.State.Parts[0].Slots[0]
			is.State.Parts[0].Slots = []store.Slot{{End: slot.End - 10*time.Minute, Units: 1}, slot}
			k, _ := newRow(*is, "token.", &row{})
			fields["s"], fields["v"], fields["u"], fields["g"] = string(k.fields(time.Hour)), k.fixed, "", k.g
			require.NotEmpty(t, k.g)
		}
		cases, reported := 0, 0
		for field, was := range fields {
			if kind != "leaky" && field != "g" && field != "s" {
				continue
			}
			head := map[string]int{"s": headSize, "g": 0, worker: strings.Index(was, " ") + 1}
			at, numeric := head[field]
			if !numeric {
				at = len(was)
			}
			all := spoil(was, at)
			if field == worker { // the script takes the next step for one that it has carried out
				seq, rest, _ := strings.Cut(was, " ")
				n, err := strconv.Atoi(seq)
				require.NoError(t, err)
				for _, c := range spoil(rest, 0) {
					all = append(all, spoiled{"again: " + c.why, fmt.Sprint(n+1, " ", c.value), false})
				}
			}
			for i, c := range all {
				if testing.Short() && i%5 != 0 {
					continue
				}
				cases++
				why := fmt.Sprintf("%s: %q: %s", kind, field, c.why)
				values := []any{field, c.value}
				for f, v := range fields {
					if f != field && v != "" {
						values = append(values, f, v)
					}
				}
				require.NoError(t, rdb.Del(ctx, key).Err())
				require.NoError(t, rdb.HSet(ctx, key, values...).Err())
				var seen events
				s, admitted := maker, 0
				if field != worker {
					s = New(rdb, Config{Timeout: time.Minute, Observe: seen.observe})
				}
				for range 12 {
					r, err := step(s, name, book)
					if field == worker && err != nil { // its record says that it has done what it has not
						require.NotContains(t, err.Error(), "script:", why)
						continue
					}
					require.NoError(t, err, why)
					admitted += len(r.Charges)
				}
				require.LessOrEqual(t, admitted, 10, why)
				sure := c.sure && field != worker
				if sure && field != "v" && field != "u" { // hot steps do not read these
					require.Zero(t, admitted, why)
				}
				if field == "v" || field == "u" { // a process that knows its limits does not read it
					s = New(rdb, Config{Timeout: time.Minute, Observe: seen.observe})
				}
				_, err := step(s, name, store.Op{Action: store.Resume})
				require.NoError(t, err, why)
				r, err := step(s, name, store.Op{Action: store.Book})
				require.NoError(t, err, why)
				require.LessOrEqual(t, r.State.Rem, time.Duration(0), why)
				leaks := limit.Rate * max(0, r.State.Last).Seconds() // until the last reservation, which counts
				require.LessOrEqual(t, r.State.Level[0], 10+leaks, why)
				if sure {
					require.InDelta(t, 0, r.State.Level[0], 0.01, why)
					seen.await(t, store.EventCorrupt)
				}
				n := len(seen.of(store.EventCorrupt))
				require.LessOrEqual(t, n, 1, why)
				reported += n
			}
		}
		t.Logf("%s: %d cases, %d reported", kind, cases, reported)
	}
}

// otherTypes are commands that make a key of another type.
var otherTypes = map[string][]any{
	"string": {"SET", "", "hello"},
	"list":   {"RPUSH", "", "hello"},
	"set":    {"SADD", "", "hello"},
	"zset":   {"ZADD", "", 1, "hello"},
	"stream": {"XADD", "", "*", "a", "b"},
}

// A key of another type is corrupt, whatever comes first: it begins again, full, and is reported
// once. What was charged before is not returned.
func TestStore_KeyOfAnotherTypeBeginsFull(t *testing.T) {
	ten := outbound.Limit{Capacity: 10, LeakRate: 1e-6}
	firsts := map[string]func(ctx context.Context, b *outbound.Bucket) error{
		"Acquire": func(ctx context.Context, b *outbound.Bucket) error {
			_, err := b.Acquire(ctx, outbound.Cost{1})
			return err
		},
		"State": func(ctx context.Context, b *outbound.Bucket) error { _, err := b.State(ctx); return err },
		"Fillup": func(ctx context.Context, b *outbound.Bucket) error {
			_, err := b.Fillup(ctx, outbound.Cost{1})
			return err
		},
		"Hold":      func(ctx context.Context, b *outbound.Bucket) error { return b.Hold(ctx, time.Second) },
		"Pause":     func(ctx context.Context, b *outbound.Bucket) error { return b.Pause(ctx, time.Second) },
		"Resume":    func(ctx context.Context, b *outbound.Bucket) error { return b.Resume(ctx) },
		"SetLimits": func(ctx context.Context, b *outbound.Bucket) error { return b.SetLimits(ctx, ten) },
	}
	try := func(t *testing.T, rdb redis.UniversalClient) {
		ctx := t.Context()
		for kind, command := range otherTypes {
			for name, first := range firsts {
				p := newProcess(t, rdb, fmt.Sprint("type ", rand.Uint64()), ten)
				key, why := p.store.Key(p.Key()), kind+" and "+name
				used, err := p.Acquire(ctx, outbound.Cost{3})
				require.NoError(t, err, why)
				command := append([]any(nil), command...)
				command[1] = key
				require.NoError(t, rdb.Del(ctx, key).Err())
				require.NoError(t, rdb.Do(ctx, command...).Err())
				if err = first(ctx, p.Bucket); name == "Acquire" {
					require.ErrorIs(t, err, outbound.ErrThrottled, why)
				} else {
					require.NoError(t, err, why)
				}
				require.Equal(t, p.Key(), p.seen.await(t, store.EventCorrupt).Key)
				used.Settle(outbound.Cost{})
				if p.store.engine.Forget(p.Key()); name != "Resume" {
					_, err = p.Acquire(ctx, outbound.Cost{1})
					require.ErrorIs(t, err, outbound.ErrThrottled, why)
				}
				require.NoError(t, p.Resume(ctx))
				p.store.engine.Forget(p.Key())
				_, err = p.Acquire(ctx, outbound.Cost{10})
				require.NoError(t, err, why)
				require.Len(t, p.seen.of(store.EventCorrupt), 1, why)
			}
		}
	}
	redistest.Each(t, try)
	t.Run("cluster", func(t *testing.T) { try(t, redistest.SharedCluster(t).Client(t)) })
}

// Corrupt keys do not disturb the other keys of a pipeline.
func TestStore_CorruptKeysDisturbNoOtherKey(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	var seen events
	s := New(rdb, Config{Timeout: time.Minute, Observe: seen.observe})
	const keys = 40
	var errs [keys]error
	var all sync.WaitGroup
	for i := range keys {
		b := bucketOf(t, s, fmt.Sprint("type ", rand.Uint64()), still)
		if i%2 == 0 {
			require.NoError(t, rdb.Set(t.Context(), s.Key(b.Key()), "hello", 0).Err())
		}
		all.Go(func() { _, errs[i] = b.Acquire(context.Background(), outbound.Cost{1}) })
	}
	all.Wait()
	for i, err := range errs {
		if i%2 == 0 {
			require.ErrorIs(t, err, outbound.ErrThrottled)
		} else {
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool { return len(seen.of(store.EventCorrupt)) == keys/2 }, time.Minute, time.Millisecond)
}

// A store neither reads nor changes the keys of another version's format.
func TestFormat_OtherKeysAreNotTouched(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	p := newProcess(t, rdb, fmt.Sprint("format ", rand.Uint64()), still)
	key := p.store.Key(p.Key())
	require.Equal(t, 1, strings.Count(key, ":1:"))
	fields := map[string]string{"s": "full to the brim", "v": "7 nonsense", "l0": "9999"}
	others := []string{":0:", ":2:", ":10:", ":"}
	for i, format := range others {
		others[i] = strings.Replace(key, ":1:", format, 1)
		require.NoError(t, rdb.HSet(t.Context(), others[i], fields).Err())
	}
	for range 10 {
		p.acquire(t)
	}
	state, err := p.State(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 10, state.Level, 0.1)
	require.NoError(t, p.SetLimits(t.Context(), still))
	for _, name := range others {
		require.Equal(t, fields, rdb.HGetAll(t.Context(), name).Val())
	}
	p.seen.mu.Lock()
	defer p.seen.mu.Unlock()
	require.Empty(t, p.seen.all)
}
