package redisstore_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// The API refuses at all frequencies, each time after a success, with pauses as long as a
// row is remembered. The arithmetic reaches each of its verdicts, and the script reaches
// the same.
func TestTheScriptJudgesRefusalsAsTheArithmeticDoes(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	limits := []leak.Limit{{Capacity: 1e9, Rate: 1e9}}
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1_700_000_000, 0)
	var model leak.Stored
	var epochs [2]int64 // as the script counts them, and as the arithmetic does
	seen, forgotten := map[int64]int{}, 0
	calls, pace, hint := 1, time.Second, time.Duration(0)
	steps := 1200
	if raced || testing.Short() {
		steps = 125
	}
	for range steps {
		if r.IntN(80) == 0 {
			calls = []int{1, 3, 20, 100, 400}[r.IntN(5)]
			pace = []time.Duration{time.Millisecond, 100 * time.Millisecond, 10 * time.Second, 45 * time.Second, time.Minute}[r.IntN(5)]
			hint = time.Duration(r.IntN(2)) * time.Millisecond
		}
		step := time.Duration(r.ExpFloat64() * float64(pace)).Truncate(time.Microsecond)
		switch r.IntN(400) {
		case 0:
			step = time.Hour - time.Microsecond
		case 1:
			step = time.Hour
		case 2:
			step = -time.Second
		}
		now = now.Add(step)
		mini.SetTime(now)
		had := model.State.Row.Top > 0
		operate := func(side int, update func(*leak.Op) leak.Reply) leak.Reply {
			op := &leak.Op{Limits: limits, Action: leak.Book, Wait: math.MaxInt64, Horizon: math.MaxInt64,
				Costs: slices.Repeat([]leak.Units{{1}}, 1+int(float64(calls)*(0.5+float64(now.Nanosecond()%1000)/1000)))}
			if epochs[side] != 0 {
				op.Reports = []leak.Report{
					{Kind: leak.Succeeded, Epoch: epochs[side]},
					{Kind: leak.Refused, Epoch: epochs[side], Wait: hint},
				}
			}
			result := update(op)
			epochs[side] = result.State.Epoch
			return result
		}
		got := operate(0, func(op *leak.Op) leak.Reply {
			result, err := store.Update(background, "key", op)
			require.NoError(t, err)
			return result
		}).State
		want := operate(1, func(op *leak.Op) leak.Reply {
			return op.Apply(&model, time.Duration(now.UnixNano()))
		}).State
		for _, row := range []*float64{&got.Row.Top, &got.Row.Per, &got.Row.Fast, &want.Row.Top, &want.Row.Per, &want.Row.Fast} {
			*row = math.Round(*row*1e9) / 1e9
		}
		require.Equal(t, want.Row, got.Row)
		require.InDelta(t, want.Speed, got.Speed, 1e-9)
		require.InDelta(t, float64(want.Rem), float64(got.Rem), 10)
		seen[want.Row.Trust]++
		if had && want.Row.Calls > 0 && step >= time.Hour {
			forgotten++
		}
	}
	t.Logf("trust %v, forgotten %d times", seen, forgotten)
	if !raced && !testing.Short() {
		for _, trust := range []int64{-3, -2, -1, 0, 128, 127} {
			require.NotZero(t, seen[trust], "trust %d", trust)
		}
	}
}

// A key stored before there were rows of refusals has no row. An hour after the last
// refusal a key has no row any more.
func TestAKeyFromBeforeRowsOfRefusalsIsRead(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	var told events
	store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
	limits := []leak.Limit{{Capacity: 10, Rate: 10}}
	ask := func(reports ...leak.Report) leak.Reply {
		store.Forget("key")
		r, err := store.Update(t.Context(), "key", &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1}}, Reports: reports})
		require.NoError(t, err)
		return r
	}
	stored := func() []string {
		fields, err := s.rdb.HKeys(t.Context(), store.Key("key")).Result()
		require.NoError(t, err)
		return fields
	}
	r := ask()
	require.NotContains(t, stored(), "r")
	r = ask(leak.Report{Kind: leak.Succeeded, Epoch: r.State.Epoch}, leak.Report{Kind: leak.Refused, Epoch: r.State.Epoch})
	require.EqualValues(t, 1, r.State.Row.Refused)
	require.InDelta(t, 0.9, r.State.Speed, 1e-9)
	require.Contains(t, stored(), "r")
	require.NoError(t, s.rdb.HDel(t.Context(), store.Key("key"), "r").Err())
	s.forward(2 * time.Second)
	r = ask()
	require.Zero(t, r.State.Row)
	require.Less(t, r.State.Speed, 0.91)
	require.Empty(t, told.of(leak.EventCorrupt))
	r = ask(leak.Report{Kind: leak.Succeeded, Epoch: r.State.Epoch}, leak.Report{Kind: leak.Refused, Epoch: r.State.Epoch})
	require.EqualValues(t, 1, r.State.Row.Refused)
	s.forward(time.Hour - time.Millisecond)
	require.EqualValues(t, 1, ask().State.Row.Calls)
	s.forward(time.Millisecond)
	require.Zero(t, ask().State.Row)
	require.NotContains(t, stored(), "r")
}

// The script and the arithmetic give up slowing down at the same limits: three full rows,
// and four tenths of the speed.
func TestTheScriptStopsSlowingDownAtFourTenthsOfTheSpeed(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	limits := []leak.Limit{{Capacity: 10, Rate: 10}}
	for _, c := range []struct {
		trust   int
		v, next float64
		found   bool
	}{
		{-3, 0.61, 0.549, false}, {-3, 0.6, 1, true}, {-3, 0.55, 1, true}, {-3, 0.5, 1, true},
		{-2, 0.6, 0.54, false}, {-2, 0.5, 0.45, false},
	} {
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
		ask := func(reports ...leak.Report) leak.State {
			r, err := store.Update(t.Context(), "key", &leak.Op{Limits: limits, Action: leak.Book, Reports: reports})
			require.NoError(t, err)
			return r.State
		}
		require.NoError(t, s.rdb.Del(t.Context(), store.Key("key")).Err())
		was := ask(leak.Report{Kind: leak.Refused, Epoch: ask().Epoch, Wait: time.Millisecond})
		counts := float64((160*4096+15)*256 + c.trust + 3) // one refusal short of a full row
		now := float64(was.At) / 1e3
		require.NoError(t, s.rdb.HSet(t.Context(), store.Key("key"),
			"r", packed(counts, c.v, 10, 1, now+3.6e9), "c", packed(0, -1e7, c.v, float64(was.Epoch), -1, 0)).Err())
		got := ask(leak.Report{Kind: leak.Refused, Epoch: was.Epoch, Wait: time.Millisecond})
		require.InDelta(t, c.next, got.Speed, 1e-9, "from %v after %d rows", c.v, -c.trust)
		require.Equal(t, c.found, got.Row.Trust > 0, "from %v after %d rows", c.v, -c.trust)
	}
}
