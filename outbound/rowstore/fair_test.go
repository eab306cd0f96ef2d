package rowstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// jain returns Jain's index of fairness: 1 if all have the same.
func jain(shares []float64) float64 {
	sum, squares := 0., 0.
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// Some of ten processes are near, and the rest is ten times as far away. Each has eight callers that
// ask as often as they can. With locks the shares are equal.
func TestStore_FarProcessHasItsShare(t *testing.T) {
	for _, c := range []struct {
		form string
		far  int
		jain float64
	}{{"locks", 5, 0.95}, {"locks", 1, 0.95}, {"no locks", 5, 0}} {
		t.Run(fmt.Sprint(c.form, ", ", c.far, " far"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				shares := make([]float64, 10)
				each(10, func(i int) {
					line := &badRows{table: rows, even: true, delay: 250*time.Microsecond + time.Duration(i)}
					if i < c.far {
						line.delay *= 10
					}
					s := rowstore.New(forms(line)[c.form], rowstore.Config{})
					op := calls(1)
					op.Limits = []store.Limit{{Name: "calls", Capacity: 1e9, Rate: 1}}
					var admitted atomic.Int64
					until := time.Now().Add(time.Second)
					each(8, func(int) {
						for time.Now().Before(until) {
							if _, err := s.Update(context.Background(), "key", op); err == nil {
								admitted.Add(1)
							} else if c.jain > 0 {
								require.NoError(t, err)
							}
						}
					})
					shares[i] = float64(admitted.Load())
				})
				var trips float64
				rows.set(func() { trips = float64(rows.trips) / float64(rows.writes) })
				t.Logf("%v, Jain %.3f, %.2f requests each step", shares, jain(shares), trips)
				require.GreaterOrEqual(t, jain(shares), c.jain)
				if c.jain > 0 {
					require.LessOrEqual(t, trips, 3.1)
				} else {
					require.Less(t, shares[0]+shares[1], 0.1*slices.Max(shares), "what the locks are for")
				}
			})
		})
	}
}

// If processes write a row in sequence, each finds it written by another one, and swaps it once more.
func TestStore_StepAfterAnotherProcessTakesTwoRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		each(10, func(i int) {
			s := rowstore.New(&badRows{table: rows, even: true, delay: 250 * time.Microsecond}, rowstore.Config{})
			time.Sleep(time.Duration(i) * 20 * time.Millisecond)
			next := time.Now()
			for range 50 {
				require.NoError(t, one(s, "key"))
				next = next.Add(200 * time.Millisecond)
				time.Sleep(time.Until(next))
			}
		})
		require.LessOrEqual(t, float64(rows.trips)/float64(rows.writes), 2.1)
	})
}
