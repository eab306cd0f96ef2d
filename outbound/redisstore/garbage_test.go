package redisstore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// server is a server whose clock a test can set.
type server struct {
	rdb     *redis.Client
	forward func(time.Duration)
}

func newMini(t testing.TB) *server {
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	now := time.Unix(1_800_000_000, 0)
	mini.SetTime(now)
	return &server{rdb, func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
		mini.FastForward(d)
	}}
}

func newClocked(t testing.TB) *server {
	s := redistest.StartWithClock(t)
	var offset time.Duration
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute }) // a busy machine may stall for seconds
	return &server{rdb, func(d time.Duration) {
		offset += d
		s.SetClock(t, offset)
	}}
}

// packed encodes numbers as the script does.
func packed(numbers ...float64) string {
	var b []byte
	for _, f := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return string(b)
}

// spoilt is a wrong value of a key's field, and what is wrong with it.
type spoilt struct{ why, value string }

// spoil makes wrong values of a right one.
func spoil(was string) []spoilt {
	all := []spoilt{
		{"empty", ""}, {"text", "hello"}, {"text of the same length", strings.Repeat("x", len(was))},
		{"cut off", was[:len(was)/2]}, {"a byte less", was[:max(0, len(was)-1)]}, {"a byte more", was + "\x00"},
		{"a number more", was + packed(1)}, {"three times", was + was + was}, {"long", strings.Repeat(was+"x", 1000)},
	}
	for i := 0; i+8 <= len(was); i += 8 {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e18, -1e18, -1, math.SmallestNonzeroFloat64} {
			all = append(all, spoilt{fmt.Sprintf("number %d is %v", i/8, bad), was[:i] + packed(bad) + was[i+8:]})
		}
	}
	return all
}

// used makes a key of a bucket of ten that leaks one a second. The bucket has eight in it and a
// refusal behind it. used returns the key's fields.
func used(t testing.TB, s *server, store *redisstore.Store, key string) (*outbound.Bucket, map[string]string) {
	b := outbound.Must(outbound.NewSharedBucket(store, key, outbound.Limit{Capacity: 10, LeakRate: 1}))
	p, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	p.Refused(time.Second)
	s.forward(11 * time.Second)
	_, err = b.Acquire(t.Context(), outbound.Cost{8})
	require.NoError(t, err)
	fields, err := s.rdb.HGetAll(t.Context(), store.Key(key)).Result()
	require.NoError(t, err)
	require.Len(t, fields, 5) // s, c, r, a level and a record
	return b, fields
}

// drain takes as many units as it can get, up to most, and returns their number.
func drain(t testing.TB, b *outbound.Bucket, most int) int {
	for n := range most + 1 {
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		if errors.Is(err, outbound.ErrThrottled) {
			return n
		}
		require.NoError(t, err)
	}
	return most + 1
}

func TestGarbageInAKeyNeitherOpensNorShutsABucket(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			var told atomic.Int64
			config := redisstore.Config{Timeout: time.Minute, Observe: func(e leak.StoreEvent) {
				if e.Kind == leak.EventCorrupt {
					told.Add(1)
				}
			}}
			cases, every := 0, 5
			if raced {
				every = 25
			}
			_, fields := used(t, s, redisstore.New(s.rdb, config), "first")
			for field, was := range fields {
				name := field[:1]
				for i, bad := range spoil(was) {
					if kind == "miniredis" && i%every != cases%every && !strings.Contains(bad.why, "NaN") {
						continue // there each value costs a hundred times as much
					}
					cases++
					store := redisstore.New(s.rdb, config)
					key := fmt.Sprintf("garbage:%s:%d", name, i)
					b, fields := used(t, s, store, key)
					for f := range fields {
						if f[:1] == name {
							field = f
						}
					}
					before := told.Load()
					require.NoError(t, s.rdb.HSet(t.Context(), store.Key(key), field, bad.value).Err())
					n := drain(t, b, 10)
					require.LessOrEqual(t, n, 10, "%s: %s", name, bad.why)
					s.forward(10*time.Second + time.Millisecond)
					store.Forget(key)
					_, err := b.Acquire(t.Context(), outbound.Cost{10})
					require.NoError(t, err, "%s: %s", name, bad.why)
					// A worker's record may be gone at any time, and some wrong numbers could be
					// right ones.
					if name != "w" && !strings.Contains(bad.why, "number") {
						require.Eventually(t, func() bool { return told.Load() > before }, time.Minute, time.Millisecond, "%s: %s", name, bad.why)
						require.Zero(t, n, "%s: %s", name, bad.why)
					}
				}
			}
			t.Logf("%d cases, %d of them told", cases, told.Load())
		})
	}
}
