package rowstore_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// forms are the two forms of rows: those that can be locked, and those that cannot.
func forms(line *badRows) map[string]rowstore.Rows {
	return map[string]rowstore.Rows{"locks": line, "no locks": unlocked{line}}
}

// A step is carried out once, whatever the line loses and repeats.
func TestStore_StepIsCarriedOutOnceOverABadLine(t *testing.T) {
	for form := range forms(nil) {
		t.Run(form, func(t *testing.T) {
			for range 5 {
				bubble(t, func(t *testing.T) {
					rows := newTable()
					seed := dice(t).Uint64()
					each(3, func(i int) {
						line := &badRows{table: rows, lost: 0.2, noReply: 0.2, repeated: 0.3, delay: 2 * time.Millisecond, dice: rand.New(rand.NewPCG(seed, uint64(i)))}
						s := rowstore.New(forms(line)[form], rowstore.Config{Timeout: time.Minute})
						each(4, func(i int) {
							for range 20 {
								r, err := s.Update(context.Background(), "key", calls(1+i%2))
								if err != nil || len(r.Charges) != 1+i%2 {
									t.Errorf("got %d charges and %v", len(r.Charges), err)
								}
							}
						})
						line.wg.Wait()
					})
					require.InDelta(t, 3*4*20*1.5, rows.level(t, "key"), 0.1)
				})
			}
		})
	}
}

// A process whose record was pushed out of the row cannot know whether a step was carried out whose
// reply was lost. It reports that, and does not repeat the step.
func TestStore_ForgottenStepIsNeverChargedTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		line := &badRows{table: rows, dice: dice(t), even: true}
		s := rowstore.New(line, rowstore.Config{})
		require.NoError(t, one(s, "key"))
		for _, others := range []int{31, 32} {
			before := rows.level(t, "key")
			line.lose(1)
			time.AfterFunc(time.Millisecond, func() { // before the step is sent again
				line.lose(0)
				for range others {
					require.NoError(t, one(rows.store(), "key"))
				}
			})
			err := one(s, "key")
			require.InDelta(t, before+1+float64(others), rows.level(t, "key"), 0.1)
			if others == 31 {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, "may be charged")
			require.NotErrorIs(t, err, store.ErrUnavailable)
		}
		require.NoError(t, one(s, "key"))
	})
}

// A process that is alone makes one request for each decision.
func TestStore_DecisionTakesOneRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s := rows.store()
		for range 100 {
			require.NoError(t, one(s, "key"))
		}
		require.Equal(t, 101, rows.asked, "the first finds the row and the clock")
		require.Equal(t, 100, rows.writes)
	})
}

// Refusals and looks write nothing.
func TestStore_RefusalsAndLooksWriteNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		bucket := shared(rows.store(), 5, 1e-5)
		admitted := 0
		for range 5000 {
			if bucket.acquire(t) {
				admitted++
			}
			bucket.do(t, store.Op{})
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, 5, admitted)
		require.LessOrEqual(t, rows.writes, 5)
	})
}

// A step of a process whose record other processes have pushed out of the row is carried out once,
// and does not fail: 40 processes share a row that records 32.
func TestRows_MoreProcessesThanRecordsFailNoStep(t *testing.T) {
	for form := range forms(nil) {
		t.Run(form, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				var failed atomic.Int64
				each(40, func(i int) {
					line := &badRows{table: rows, even: true, delay: time.Millisecond + time.Duration(i)}
					s := rowstore.New(forms(line)[form], rowstore.Config{Timeout: time.Minute})
					for range 5 {
						if one(s, "key") != nil {
							failed.Add(1)
						}
					}
				})
				if n := failed.Load(); n > 0 {
					t.Errorf("%d of 200 steps failed", n)
				}
			})
		})
	}
}

// Stats counts the request that found the row written by another process, too.
func TestStats_CountsRequestsOfRaces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		first, other := rowstore.New(rows, rowstore.Config{}), rowstore.New(rows, rowstore.Config{})
		const rounds = 10
		for range rounds { // in turn
			for _, s := range []*rowstore.Store{first, other} {
				require.NoError(t, one(s, "key"))
			}
		}
		is := first.Stats()
		require.Equal(t, uint64(rounds), is.Answered)
		require.Equal(t, uint64(2*rounds), is.Requests.Count)
		require.Zero(t, is.Failed+is.Cancelled+is.Remembered+is.Repeats)
		require.Nil(t, is.Outages)
	})
}
