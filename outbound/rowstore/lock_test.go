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

// replyLost are rows whose next reply is lost, whatever its swaps have done. Then another program
// locks a row.
type replyLost struct {
	*table
	lose   bool
	writes bool // whether the swaps are carried out
	then   func()
}

func (u *replyLost) Swap(ctx context.Context, swaps []rowstore.Swap) error {
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

// A step whose reply was lost, and whose row another program locks before it can ask again, delays
// its own key only. It is charged once, whatever became of its first attempt.
func TestLock_AfterALostReplyDelaysItsKeyOnly(t *testing.T) {
	for name, writes := range map[string]bool{"it was carried out": true, "it was not": false} {
		for how, locked := range map[string]time.Duration{"for a while": 600 * time.Millisecond, "for too long": 3 * time.Second} {
			t.Run(name+", "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					rows := &replyLost{table: newTable(), writes: writes}
					var seen events
					s := rowstore.New(rows, rowstore.Config{Observe: seen.observe})
					const keys = 40
					each(keys, func(i int) { require.NoError(t, one(s, fmt.Sprint(i))) })
					lock := rows.lockOf(s.Key("0"))
					rows.then = func() {
						lock <- struct{}{} // as a person does, by hand
						time.AfterFunc(locked, func() { <-lock })
					}
					start := time.Now()
					rows.set(func() { rows.lose = true })
					each(2, func(i int) {
						if i == 0 {
							err := one(s, "0")
							switch took := time.Since(start); {
							case writes: // a look at the row shows it
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
							each(keys-1, func(i int) { require.NoError(t, one(s, fmt.Sprint(1+i))) })
							require.Less(t, time.Since(asked), 30*time.Millisecond, "no other key waits")
						}
					})
					require.Empty(t, seen.kinds())
					time.Sleep(locked)
					want := 2.
					if locked > time.Second && !writes {
						want = 1
					}
					require.InDelta(t, want, rows.level(t, "0"), 0.1)
					require.NoError(t, one(s, "0"))
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
func TestLock_EarlierAttemptCounts(t *testing.T) {
	for free := 255 * time.Millisecond; free < 500*time.Millisecond; free += 7 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			rows := &slow{table: newTable()}
			s := rowstore.New(rows, rowstore.Config{})
			require.NoError(t, one(s, "key"))
			lock := rows.lockOf(s.Key("key"))
			lock <- struct{}{}
			time.AfterFunc(free, func() { <-lock })
			rows.set(func() { rows.by = 400 * time.Millisecond })
			start := time.Now()
			require.NoError(t, one(s, "key"))
			require.LessOrEqual(t, time.Since(start), max(free, 400*time.Millisecond)+160*time.Millisecond)
			require.InDelta(t, 2, rows.level(t, "key"), 0.1)
			require.NoError(t, one(s, "key"))
			require.InDelta(t, 3, rows.level(t, "key"), 0.1)
		})
	}
}

// A step fails because the rows are silent, and not because its row was locked before.
func TestLock_SilenceAfterItIsAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := &slow{table: newTable()}
		s := rowstore.New(rows, rowstore.Config{})
		require.NoError(t, one(s, "key"))
		lock := rows.lockOf(s.Key("key"))
		lock <- struct{}{}
		rows.set(func() { rows.by = 10 * time.Second })
		time.AfterFunc(300*time.Millisecond, func() { rows.set(func() { rows.hang = true }) })
		err := one(s, "key")
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NotContains(t, err.Error(), "locked")
		<-lock
	})
}

// written are rows whose next call of Swap takes a while, and then does something more.
type written struct {
	*table
	then func()
}

func (w *written) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	_ = w.table.Swap(ctx, swaps) // never fails
	var then func()
	w.set(func() { then, w.then = w.then, nil })
	if then != nil {
		time.Sleep(100 * time.Millisecond)
		then()
	}
	return nil
}

// A caller leaves while the rows book for it, and another program locks the row for long. The store
// does not ask for the row again and again to return the booking.
func TestLock_ReturnOnALockedRowEnds(t *testing.T) {
	for name, locked := range map[string]time.Duration{"for a while": 500 * time.Millisecond, "for long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := &written{table: newTable()}
				s := rowstore.New(rows, rowstore.Config{})
				require.NoError(t, one(s, "key"))
				lock := rows.lockOf(s.Key("key"))
				rows.set(func() {
					rows.then = func() {
						lock <- struct{}{}
						time.AfterFunc(locked, func() { <-lock })
					}
				})
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				_, err := s.Update(ctx, "key", calls(1))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				time.Sleep(5 * time.Second)
				var asked int
				rows.set(func() { asked = rows.asked })
				time.Sleep(time.Minute)
				rows.set(func() { require.Equal(t, asked, rows.asked) })
				time.Sleep(locked)
				want := 1.
				if locked > time.Second {
					want = 2
				}
				require.InDelta(t, want, rows.level(t, "key"), 0.1)
			})
		})
	}
}
