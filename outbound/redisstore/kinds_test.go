package redisstore_test

import (
	"fmt"
	"io"
	"strings"
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

// filled makes a key of a limit of ten. It has eight in it, of several calls, and is not held.
func filled(t testing.TB, s *server, store *redisstore.Store, key string, limit outbound.Limit) (*outbound.Bucket, map[string]string) {
	b := outbound.Must(outbound.NewSharedBucket(store, key, limit))
	for range 4 {
		_, err := b.Acquire(t.Context(), outbound.Cost{2})
		require.NoError(t, err)
		s.forward(time.Second)
	}
	fields, err := s.rdb.HGetAll(t.Context(), store.Key(key)).Result()
	require.NoError(t, err)
	return b, fields
}

func TestGarbageInALogNeitherOpensNorShutsABucket(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		for name, limit := range map[string]outbound.Limit{
			"window": outbound.Window(10, 20*time.Second), "fixed": outbound.FixedWindow(10, 20*time.Second), "hourly": outbound.Hourly(10),
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				_, fields := filled(t, s, redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute}), "first", limit)
				if name == "window" {
					require.Len(t, fields["g0"], 3*32)
				}
				cases, every := 0, 5
				if raced {
					every = 25
				}
				for _, field := range []string{"l0", "g0"} {
					for i, bad := range append(spoil(fields[field]), spoilt{"gone", "gone"}) {
						if fields[field] == "" || kind == "miniredis" && i%every != 0 && !strings.Contains(bad.why, "NaN") {
							continue
						}
						cases++
						why := fmt.Sprintf("%s: %s", field, bad.why)
						var told events
						store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
						b, _ := filled(t, s, store, fmt.Sprint("garbage:", field, i), limit)
						if bad.why == "gone" {
							require.NoError(t, s.rdb.HDel(t.Context(), store.Key(b.Key()), field).Err())
						} else {
							require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), field, bad.value).Err())
						}
						n := drain(t, b, 10)
						require.LessOrEqual(t, n, 10, why)
						if field == "g0" && len(bad.value) != len(fields[field]) { // the script reads no more of it than it needs
							told.await(t, leak.EventCorrupt)
						}
						s.forward(time.Hour + 2*time.Second) // no window and no hour is longer
						store.Forget(b.Key())
						_, err := b.Acquire(t.Context(), outbound.Cost{10})
						require.NoError(t, err, why)
					}
				}
				t.Logf("%d cases", cases)
			})
		}
	}
}

// A Resume opens what garbage has shut.
func TestAResumeOpensAWindowOfGarbage(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	for name, limit := range map[string]outbound.Limit{"window": outbound.Window(10, time.Hour), "fixed": outbound.FixedWindow(10, time.Hour), "daily": outbound.Daily(10, time.UTC)} {
		var told events
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		b, _ := filled(t, s, store, name, limit)
		require.NoError(t, s.rdb.HSet(t.Context(), store.Key(name), "l0", "x").Err())
		require.Zero(t, drain(t, b, 10), name)
		told.await(t, leak.EventCorrupt)
		require.NoError(t, b.Resume(t.Context()))
		store.Forget(name)
		require.Equal(t, 10, drain(t, b, 10), name)
	}
}

// A fixed window that is made shorter refills nothing.
func TestAShorterFixedWindowForgetsNoCall(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		s := start(t)
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
		b := outbound.Must(outbound.NewSharedBucket(store, "key", outbound.FixedWindow(100, time.Hour)))
		calls := func(n float64) error { _, err := b.Acquire(t.Context(), outbound.Cost{n}); return err }
		require.NoError(t, calls(1), kind)
		s.forward(50 * time.Minute)
		require.NoError(t, calls(99), kind)
		require.NoError(t, b.SetLimits(t.Context(), outbound.FixedWindow(10, 10*time.Minute)))
		require.ErrorIs(t, calls(1), outbound.ErrThrottled, kind)
		s.forward(10*time.Minute + time.Second)
		store.Forget("key") // no refusal from memory
		require.NoError(t, calls(10), kind)
	}
}

// Each place of a booking comes back as it was booked, with a repeated reply too, and so does
// what was charged for it.
func TestARepeatedBookingOfWindowsAndCalendarsIsTheSame(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	day := time.Now().UTC().Truncate(24 * time.Hour).Unix()
	period := leak.Period{Begin: day, End: day + 86400, Next: day + 2*86400, After: day + 3*86400}
	limits := []leak.Limit{
		{Kind: leak.Moving, Capacity: 3, Rate: 3, Window: time.Second}, {Unit: 1, Capacity: 2, Rate: 1},
		{Unit: 2, Kind: leak.Daily, Zone: "UTC", Capacity: 1000}, {Unit: 3, Kind: leak.Fixed, Capacity: 4, Rate: 2, Window: 2 * time.Second},
	}
	op := &leak.Op{Limits: limits, Periods: []leak.Period{{}, {}, period, {}}, Action: leak.Book, Wait: time.Hour, Horizon: time.Hour}
	for i := range 20 {
		op.Costs = append(op.Costs, leak.Units{1, float64(i % 2), 1, 1})
	}
	var lose atomic.Bool
	var once, again any
	rdb.AddHook(between(func(cmd redis.Cmder, next func() error) error {
		if err := next(); err != nil || !lose.Load() {
			return err
		}
		c := cmd.(interface{ Val() any })
		if once == nil {
			once = c.Val()
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		again = c.Val()
		return nil
	}))
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	_, err := store.Update(t.Context(), "key", &leak.Op{Limits: limits, Periods: op.Periods})
	require.NoError(t, err)
	lose.Store(true)
	got, err := store.Update(t.Context(), "key", op)
	require.NoError(t, err)
	require.NotNil(t, again)
	var m leak.Stored
	want := op.Apply(&m, got.Charges[0].Born)
	require.Len(t, want.Charges, len(got.Charges))
	first := got.Charges[0].Place - want.Charges[0].Place
	for i := range want.Charges {
		a, b := got.Charges[i], want.Charges[i]
		require.InDelta(t, float64(b.Place), float64(a.Place-first), 5e6, "place %d", i)
		require.InDeltaSlice(t, b.Y[:], a.Y[:], 0.02, "call %d: %+v, want %+v", i, a, b)
		require.InDelta(t, b.Up[2], a.Up[2], 0, "call %d", i)
	}
	require.Equal(t, once.([]any)[1].(string)[8:], again.([]any)[1].(string)[8:]) // but for the time
}

// A bucket of leaky limits sends what it has sent before there were others.
func TestARequestByLeakyLimitsTellsOfNoKinds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	heads := map[int]int{}
	rdb.AddHook(between(func(cmd redis.Cmder, next func() error) error {
		heads[len(cmd.Args()[5].([]byte))]++
		return next()
	}))
	for n, limits := range [][]outbound.Limit{
		1: {outbound.PerSecond(10)}, 2: {outbound.PerSecond(10), outbound.PerHour(10).Of(1, "")}, 3: {outbound.PerSecond(10), outbound.Window(10, time.Minute), outbound.Hourly(10)},
	} {
		if n == 0 {
			continue
		}
		clear(heads)
		_, err := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}), fmt.Sprint(n), limits...)).Acquire(t.Context(), outbound.Cost{1, 1})
		require.NoError(t, err)
		for head := range heads {
			require.Equal(t, map[int]int{1: 48 + 24, 2: 48 + 48, 3: 48 + 72 + 48 + 32}[n], head)
		}
		require.Len(t, heads, 1)
	}
}

// A decision takes one trip, and a key with a full log little of the server's memory.
func TestADecisionByAWindowTakesOneTripAndLittleMemory(t *testing.T) {
	t.Parallel()
	s := newClocked(t)
	var trips atomic.Int64
	s.rdb.AddHook(between(func(_ redis.Cmder, next func() error) error {
		trips.Add(1)
		return next()
	}))
	store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
	b := outbound.Must(outbound.NewSharedBucket(punctual(store), "key", outbound.Window(1000, time.Minute), outbound.Hourly(5000)))
	_, err := b.Acquire(t.Context(), outbound.Cost{1})
	require.NoError(t, err)
	before := trips.Load()
	const calls = 150
	for range calls { // a call in each part of the window, twice over
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
		s.forward(time.Second)
	}
	require.EqualValues(t, calls, trips.Load()-before)
	fields, err := s.rdb.HGetAll(t.Context(), store.Key("key")).Result()
	require.NoError(t, err)
	log := 0
	for name, value := range fields {
		if name[0] == 'g' {
			log = len(value)
		}
	}
	bytes, err := s.rdb.MemoryUsage(t.Context(), store.Key("key")).Result()
	require.NoError(t, err)
	t.Logf("%d bytes, of which the log has %d", bytes, log)
	require.Greater(t, log, 50*24)
	require.Less(t, bytes, int64(4096))
}
