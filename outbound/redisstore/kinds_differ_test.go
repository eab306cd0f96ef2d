package redisstore_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// periodsOf returns the periods of limits, of which a day is one of UTC.
func periodsOf(limits []leak.Limit, unix time.Duration) []leak.Period {
	periods := make([]leak.Period, len(limits))
	for i, l := range limits {
		long := map[leak.Kind]int64{leak.Hourly: 3600, leak.Daily: 86400}[l.Kind]
		if long == 0 {
			continue
		}
		begin := int64((unix-leak.Slack)/time.Second) / long * long
		periods[i] = leak.Period{Begin: begin, End: begin + long, Next: begin + 2*long, After: begin + 3*long}
	}
	return periods
}

// Two workers have one name for limits of different kinds, as while a release rolls out, and
// the levels go from one to the other as the arithmetic has it.
func TestWorkersWithLimitsOfDifferentKindsAgreeWithTheArithmetic(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	stores := twoStores(s.rdb)
	r := rand.New(rand.NewPCG(seed, 17))
	shapes := []leak.Limit{
		{Kind: leak.Moving, Capacity: 10, Rate: 1, Window: 10 * time.Second}, {Kind: leak.Moving, Capacity: 3, Rate: 3, Window: time.Second},
		{Kind: leak.Fixed, Capacity: 10, Rate: 2, Window: 5 * time.Second}, {Kind: leak.Fixed, Capacity: 6, Rate: 0.1, Window: time.Minute},
		{Capacity: 10, Rate: 2}, {Capacity: 4, Rate: 100}, {Capacity: 8, Rate: 0.05},
		{Kind: leak.Hourly, Capacity: 50}, {Kind: leak.Daily, Zone: "UTC", Capacity: 200},
	}
	keys := 8
	switch {
	case raced:
		keys = 3
	case testing.Short():
		keys = 6
	}
	differed, blurred := 0, 0
	for k := range keys {
		key := fmt.Sprint("kinds:", k)
		var workers [2][]leak.Limit
		for i := range workers {
			workers[i] = []leak.Limit{shapes[r.IntN(len(shapes))], shapes[r.IntN(len(shapes))]}
			if r.IntN(3) == 0 {
				workers[i] = workers[i][:1]
			}
			for j := range workers[i] {
				workers[i][j].Unit = int32(j)
			}
		}
		var m leak.Stored
		var booked [2][2][]leak.Charge // as the store counts, and as the arithmetic does; of each worker
		var idle time.Duration         // since the last change
		for step := range 60 {
			i := r.IntN(2)
			op := leak.Op{Limits: workers[i], Action: leak.Book, Wait: time.Duration(r.IntN(3)) * 2 * time.Second, Horizon: time.Minute}
			for range r.IntN(4) {
				n := leak.Units{float64(r.IntN(3)), float64(1 + r.IntN(3))}
				if len(op.Limits) == 1 {
					n[1] = 0
				}
				op.Costs = append(op.Costs, n)
			}
			report, of := r.IntN(8), 0
			if n := len(booked[0][i]); n > 0 && report < 5 {
				of = n - 1 - r.IntN(min(n, 4))
			} else {
				report = 8
			}
			ask := func(side int) leak.Op {
				op := op
				if report < 5 {
					c := booked[side][i][of]
					switch report {
					case 0, 1:
						op.Reports = []leak.Report{{Kind: leak.Settled, Charge: &c, Used: leak.Units{float64(report)}}}
					case 2:
						op.Reports = []leak.Report{{Kind: leak.Held, Charge: &c, Wait: time.Second}}
					case 3:
						op.Back = []leak.Charge{c}
					default:
						op.Move = &c
						op.Reports = []leak.Report{{Kind: leak.Held, Wait: time.Second}}
					}
				}
				return op
			}
			left := ask(0)
			left.Periods = periodsOf(op.Limits, m.State.At)
			store := stores[i].(*redisstore.Store)
			store.Forget(key)
			was, err := s.rdb.HGetAll(t.Context(), store.Key(key)).Result()
			require.NoError(t, err)
			got, err := store.Update(t.Context(), key, &left)
			require.NoError(t, err)
			if got.Untimely {
				left.Periods = periodsOf(op.Limits, got.Unix)
				got, err = store.Update(t.Context(), key, &left)
				require.NoError(t, err)
			}
			right := ask(1)
			right.Periods = left.Periods
			before := m.Clone()
			own := clone(&right) // which booking is the last must not hang on a nanosecond
			snap(own, m.Clone(), got.State.At, 0, 0)
			widen(m.State.Logs, charges(&right), charges(own))
			want := own.Apply(&m, got.State.At)
			is, err := s.rdb.HGetAll(t.Context(), store.Key(key)).Result()
			require.NoError(t, err)
			if !want.Changed { // a store that keeps bytes writes none
				m = before
			}
			wrote := !maps.Equal(was, is)
			what := fmt.Sprintf("seed %d, key %d, step %d, worker %d of %+v: %+v", seed, k, step, i, workers, left)
			// A nanosecond decides whether a call returns any units of a limit that is shared at
			// other rates, when it is settled or given back. The states then differ by no more than that.
			if wrote != want.Changed && len(left.Reports)+len(left.Back) > 0 {
				for j := range op.Limits {
					require.InDelta(t, want.State.Level[j].Level, got.State.Level[j].Level, 1e-6, what)
					require.InDelta(t, want.State.Level[j].Ret, got.State.Level[j].Ret, 1e-6, what)
				}
				blurred++
				break
			}
			require.Equal(t, want.Changed, wrote, what)
			require.Equal(t, want.Differ, got.Differ, what)
			require.False(t, got.Garbage, what)
			require.Len(t, got.Charges, len(want.Charges), what)
			require.InDelta(t, float64(want.Wait), float64(got.Wait), 100, what) // at the lowest rate a unit is 20 s
			for j := range op.Limits {
				a, b := got.State.Level[j], want.State.Level[j]
				require.InDelta(t, b.Level, a.Level, 1e-6, what)
				require.InDelta(t, b.Top, a.Top, 10, what)
				if op.Limits[j].Kind != leak.Leaky {
					require.InDelta(t, b.Ret, a.Ret, 10, what)
				} else if want.Changed { // what nanoseconds are worth must not add up
					m.State.Level[j] = a
				}
			}
			for c := range want.Charges {
				a, b := &got.Charges[c], &want.Charges[c]
				require.InDelta(t, float64(b.Place), float64(a.Place), 100, what)
				b.Place, b.Before, b.Free = a.Place, a.Before, a.Free
				for j := range op.Limits {
					require.InDelta(t, b.Y[j], a.Y[j], 1e-6+1e-7*op.Limits[j].Rate, what) // levels of others add up
					if op.Limits[j].Kind == leak.Leaky {
						b.Y[j] = a.Y[j]
					}
					require.InDelta(t, b.Up[j], a.Up[j], 1e-6, what)
				}
			}
			if want.Differ {
				differed++
			}
			booked[0][i], booked[1][i] = append(booked[0][i], got.Charges...), append(booked[1][i], want.Charges...)
			if kept, err := logsOf(s.rdb, store, key); want.Changed {
				require.NoError(t, err, what)
				if err := compareLogs(m.State.Logs, kept, m.State.Dial(), 10); !errors.Is(err, errMerged) { // by a nanosecond
					require.NoError(t, err, what)
				}
				m.State.Last, m.State.Skip, m.State.Logs = got.State.Last, got.State.Skip, kept
				m = m.Clone()
			}
			if want.Changed {
				idle = 0
			}
			// No longer than the store keeps a key that has nothing in it.
			d := time.Duration(r.ExpFloat64() * math.Pow(10, float64(r.IntN(4))) * 1e7)
			d = min(d, 30*time.Second-idle).Truncate(time.Microsecond)
			idle += d
			s.forward(d)
		}
	}
	t.Logf("%d steps by others' limits, %d keys blurred", differed, blurred)
	require.Less(t, blurred, keys)
	require.Positive(t, differed)
}
