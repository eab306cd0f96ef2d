package rowstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// unheard are rows whose next reply is lost, whatever its swaps have done. Then somebody locks a row.
type unheard struct {
	*table
	lose   bool
	writes bool // whether the swaps are carried out
	then   func()
}

func (u *unheard) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	time.Sleep(time.Millisecond)
	lose := false
	u.set(func() { lose, u.lose = u.lose, false })
	if !lose {
		return u.table.Swap(ctx, swaps)
	}
	if u.writes {
		_ = u.table.Swap(ctx, swaps) // never fails
	}
	u.then()
	return errLost
}

// A step whose reply was lost, and whose row somebody locks before it can ask again, delays its own key only:
// neither those that went with it nor those that come later wait. It is charged once, whatever became of its first
// attempt.
func TestUnknownStep_LockedRowDelaysItsKeyOnly(t *testing.T) {
	for name, writes := range map[string]bool{"it was carried out": true, "it was not": false} {
		for how, locked := range map[string]time.Duration{"for a while": 600 * time.Millisecond, "for too long": 3 * time.Second} {
			t.Run(name+", "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					rows := &unheard{table: newTable(), writes: writes}
					var told events
					s := rowstore.New(rows, rowstore.Config{Observe: told.observe})
					ask := func(key string) error {
						_, err := s.Update(context.Background(), key, calls(1))
						return err
					}
					const keys = 40
					each(keys, func(i int) { require.NoError(t, ask(fmt.Sprint(i))) })
					lock := rows.lockOf(s.Key("0"))
					rows.then = func() {
						lock <- struct{}{} // as a person does, by hand
						time.AfterFunc(locked, func() { <-lock })
					}
					start := time.Now()
					rows.set(func() { rows.lose = true })
					each(2, func(i int) {
						if i == 0 {
							err := ask("0")
							switch took := time.Since(start); {
							case writes: // a look at the row tells
								require.NoError(t, err)
								require.Less(t, took, 30*time.Millisecond)
							case locked < time.Second:
								require.NoError(t, err)
								require.Less(t, took, locked+200*time.Millisecond)
							default:
								require.ErrorContains(t, err, "keeps the row locked")
								require.NotErrorIs(t, err, store.ErrUnavailable)
								require.LessOrEqual(t, took, time.Second)
							}
							return
						}
						time.Sleep(2 * time.Millisecond)
						for time.Since(start) < 900*time.Millisecond {
							asked := time.Now()
							each(keys-1, func(i int) { require.NoError(t, ask(fmt.Sprint(1+i))) })
							require.Less(t, time.Since(asked), 30*time.Millisecond, "the others wait for nobody")
						}
					})
					require.Empty(t, told.kinds())
					time.Sleep(locked)
					want := 2.
					if locked > time.Second && !writes {
						want = 1
					}
					require.InDelta(t, want, rows.level(t, "0"), 0.1)
					require.NoError(t, ask("0"))
					require.InDelta(t, want+1, rows.level(t, "0"), 0.1)
				})
			})
		}
	}
}

// slow are rows that carry one call of Swap out later.
type slow struct {
	*table
	by   time.Duration // how long the next call takes before it is carried out
	hang bool          // after that the rows do not answer
}

func (r *slow) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	var by time.Duration
	hang := false
	r.set(func() { by, r.by, hang = r.by, 0, r.hang })
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(by + time.Millisecond)
	return r.table.Swap(ctx, swaps)
}

// The first attempt may be carried out while the step goes on apart: that ends the step, once.
func TestUnknownStep_EarlierAttemptCounts(t *testing.T) {
	for free := 255 * time.Millisecond; free < 500*time.Millisecond; free += 7 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			rows := &slow{table: newTable()}
			s := rowstore.New(rows, rowstore.Config{})
			ask := func() error {
				_, err := s.Update(context.Background(), "key", calls(1))
				return err
			}
			require.NoError(t, ask())
			lock := rows.lockOf(s.Key("key"))
			lock <- struct{}{}
			time.AfterFunc(free, func() { <-lock })
			rows.set(func() { rows.by = 400 * time.Millisecond })
			start := time.Now()
			require.NoError(t, ask())
			require.LessOrEqual(t, time.Since(start), max(free, 400*time.Millisecond)+160*time.Millisecond)
			require.InDelta(t, 2, rows.level(t, "key"), 0.1)
			require.NoError(t, ask())
			require.InDelta(t, 3, rows.level(t, "key"), 0.1)
		})
	}
}

// That the row was locked once is not why a step fails when the rows have fallen silent since.
func TestUnknownStep_FailsForSilenceAfterLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := &slow{table: newTable()}
		s := rowstore.New(rows, rowstore.Config{})
		_, err := s.Update(context.Background(), "key", calls(1))
		require.NoError(t, err)
		lock := rows.lockOf(s.Key("key"))
		lock <- struct{}{}
		rows.set(func() { rows.by = 10 * time.Second })
		time.AfterFunc(300*time.Millisecond, func() { rows.set(func() { rows.hang = true }) })
		_, err = s.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NotContains(t, err.Error(), "locked")
		<-lock
	})
}
