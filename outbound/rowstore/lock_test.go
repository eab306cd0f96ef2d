package rowstore

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Some of ten processes are near, and the rest is ten times as far away. Each has eight callers that
// ask as often as they can. With locks the shares are equal.
func TestLock_FarProcessHasItsShare(t *testing.T) {
	for _, c := range []struct {
		form string
		far  int
		jain float64 // Jain's index of fairness, at least: it is 1 if all have the same
	}{{"locks", 5, 0.95}, {"locks", 1, 0.95}, {"no locks", 5, 0}} {
		t.Run(fmt.Sprint(c.form, ", ", c.far, " far"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				shares := make([]float64, 10)
				each(10, func(i int) {
					l := &line{table: rows, delay: 250*time.Microsecond + time.Duration(i)}
					if i < c.far {
						l.delay *= 10
					}
					s := New(forms[c.form](l), Config{})
					op := calls(1)
					op.Limits = []store.Limit{{Name: "calls", Capacity: 1e9, Rate: 1}}
					var admitted atomic.Int64
					until := time.Now().Add(time.Second)
					each(8, func(int) {
						for time.Now().Before(until) {
							if _, err := s.Update(bg, "key", op); err == nil {
								admitted.Add(1)
							} else if c.jain > 0 {
								require.NoError(t, err)
							}
						}
					})
					shares[i] = float64(admitted.Load())
				})
				sum, squares := 0., 0.
				for _, x := range shares {
					sum, squares = sum+x, squares+x*x
				}
				jain := sum * sum / (10 * squares)
				var trips float64
				rows.set(func() { trips = float64(rows.trips) / float64(rows.writes) }) // some may be under way
				t.Logf("%v, Jain %.3f, %.2f requests each step", shares, jain, trips)
				require.GreaterOrEqual(t, jain, c.jain)
				if c.jain > 0 {
					require.LessOrEqual(t, trips, 3.1)
				} else {
					require.Less(t, shares[0]+shares[1], 0.1*slices.Max(shares), "what the locks are for")
				}
			})
		})
	}
}

// A locked row delays no other, and is no outage.
func TestLock_DelaysNoOtherRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s := New(rows, Config{Observe: seen.observe})
		each(40, func(i int) { require.NoError(t, one(s, fmt.Sprint(i))) })
		free := rows.hold("0")
		start := time.Now()
		each(40, func(i int) {
			err := one(s, fmt.Sprint(i))
			if i > 0 {
				require.NoError(t, err)
				require.Zero(t, time.Since(start))
				return
			}
			require.ErrorContains(t, err, "keeps the row locked")
			require.NotErrorIs(t, err, store.ErrUnavailable)
			require.Equal(t, time.Second, time.Since(start))
		})
		free()
		require.NoError(t, one(s, "0"))
		require.Empty(t, seen.kinds())
		require.InDelta(t, 2, rows.level(t, "0"), 0.1)
	})
}

// Keys that wait for locked rows do not delay a key that many processes write by locks.
func TestLock_DelaysNoBusyRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &line{table: newTable(), delay: time.Millisecond}
		s := New(l, Config{})
		const stuck = 5
		for i := range stuck {
			require.NoError(t, one(s, fmt.Sprint(i)))
			defer l.hold(fmt.Sprint(i))()
		}
		until := time.Now().Add(5 * time.Second)
		each(stuck+3, func(i int) {
			of, key := s, fmt.Sprint(i)
			if i >= stuck {
				of, key = New(l, Config{}), "key"
			}
			for time.Now().Before(until) {
				start := time.Now()
				err := one(of, key)
				if i < stuck {
					require.ErrorContains(t, err, "keeps the row locked")
					continue
				}
				require.NoError(t, err)
				require.Less(t, time.Since(start), 100*time.Millisecond)
			}
		})
	})
}

// Other processes write the rows repeatedly, and lock them for long. Keys that wait to lock a row are
// no outage.
func TestLock_WaitIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s := New((&line{table: rows, delay: time.Millisecond}).answers(func(_ context.Context, swaps []Swap, carry func() error) error {
			rows.set(func() {
				for i := range swaps {
					rows.rows[string(swaps[i].Key)] = Row{Token: random()}
				}
			})
			return carry()
		}), Config{})
		each(20, func(i int) {
			defer rows.hold(fmt.Sprint(i))()
			err := one(s, fmt.Sprint(i))
			require.Error(t, err)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		})
	})
}

// Rows that the store cannot lock may be locked by other programs. The store pauses between attempts.
func TestLock_RowIsAskedForWithPauses(t *testing.T) {
	for _, form := range forms {
		bubble(t, func(t *testing.T) {
			rows := newTable()
			s := New(form(&line{table: rows, delay: time.Millisecond}), Config{})
			require.NoError(t, one(s, "key"))
			free := rows.hold("key")
			var before int
			rows.set(func() { before = rows.asked })
			err := one(s, "key")
			require.ErrorContains(t, err, "keeps the row locked")
			require.NotErrorIs(t, err, store.ErrUnavailable)
			rows.set(func() { require.Less(t, rows.asked-before, 30) })
			time.AfterFunc(300*time.Millisecond, free)
			start := time.Now()
			require.NoError(t, one(s, "key"))
			require.Less(t, time.Since(start), 500*time.Millisecond)
			require.InDelta(t, 2, rows.level(t, "key"), 0.1)
		})
	}
}

// A swap says that the store is alone with its row only if nothing was in the way of the step before, and it is the
// step's first attempt.
func TestRows_AloneIfNothingWasInTheWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &line{table: newTable()}
		s := New(l, Config{})
		var got []bool
		lost := false // the next reply
		l.answers(func(_ context.Context, swaps []Swap, carry func() error) error {
			got = append(got, swaps[0].Alone)
			if err := carry(); !lost {
				return err
			}
			lost = false
			return errLost
		})
		for i, c := range []struct {
			before func()
			want   []bool
		}{
			{want: []bool{false, false}}, // a look, and a new row
			{want: []bool{true}},
			{before: func() { lost = true }, want: []bool{true, false}},
			{want: []bool{false}},
			{want: []bool{true}},
			{before: func() { require.NoError(t, one(l.table.store(), "key")) }, want: []bool{true, false}},
			{want: []bool{false}},
			{want: []bool{true}},
			{before: func() { time.AfterFunc(time.Millisecond, l.hold("key")) }, want: []bool{true, false, false}},
			{want: []bool{false}},
			{want: []bool{true}},
		} {
			if got = nil; c.before != nil {
				c.before()
			}
			require.NoError(t, one(s, "key"))
			require.Equal(t, c.want, got, i)
		}
	})
}

// At most six calls of Swap and Lock run at the same time.
func TestRows_FewCallsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hung := make(chan struct{})
		defer close(hung)
		var under atomic.Int64
		s := New((&line{table: newTable()}).answers(func(_ context.Context, _ []Swap, carry func() error) error {
			under.Add(1)
			<-hung
			return carry()
		}), Config{Timeout: time.Second})
		each(100, func(i int) {
			start := time.Now()
			require.ErrorIs(t, one(s, fmt.Sprint(i)), store.ErrUnavailable)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
		require.EqualValues(t, 6, under.Load())
	})
}

// A step whose reply was lost, and whose row another program locks before it can ask again, delays
// its own key only. It is charged once, whatever became of its first attempt.
func TestLock_AfterALostReplyDelaysItsKeyOnly(t *testing.T) {
	for name, writes := range map[string]bool{"it was carried out": true, "it was not": false} {
		for how, locked := range map[string]time.Duration{"for a while": 600 * time.Millisecond, "for too long": 3 * time.Second} {
			t.Run(name+", "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					rows := newTable()
					l := &line{table: rows, delay: time.Millisecond / 2}
					var seen events
					s := New(l, Config{Observe: seen.observe})
					const keys = 40
					each(keys, func(i int) { require.NoError(t, one(s, fmt.Sprint(i))) })
					l.answersOnce(func(_ context.Context, _ []Swap, carry func() error) error {
						if writes {
							_ = carry() // never fails
						}
						time.AfterFunc(locked, rows.hold("0")) // as a person does, by hand
						return errLost
					})
					start := time.Now()
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

// The first attempt may be carried out while the step goes on apart: that ends the step, once.
func TestLock_EarlierAttemptCounts(t *testing.T) {
	for free := 255 * time.Millisecond; free < 500*time.Millisecond; free += 7 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			l := &line{table: newTable(), delay: time.Millisecond / 2}
			s := New(l, Config{})
			require.NoError(t, one(s, "key"))
			time.AfterFunc(free, l.hold("key"))
			l.answersOnce(func(_ context.Context, _ []Swap, carry func() error) error {
				time.Sleep(400 * time.Millisecond)
				return carry()
			})
			start := time.Now()
			require.NoError(t, one(s, "key"))
			require.LessOrEqual(t, time.Since(start), max(free, 400*time.Millisecond)+160*time.Millisecond)
			require.InDelta(t, 2, l.level(t, "key"), 0.1)
			require.NoError(t, one(s, "key"))
			require.InDelta(t, 3, l.level(t, "key"), 0.1)
		})
	}
}

// A step fails because the rows are silent, and not because its row was locked before.
func TestLock_SilenceAfterItIsAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &line{table: newTable(), delay: time.Millisecond / 2}
		s := New(l, Config{})
		require.NoError(t, one(s, "key"))
		defer l.hold("key")()
		l.answersOnce(func(_ context.Context, _ []Swap, carry func() error) error {
			time.AfterFunc(300*time.Millisecond, func() {
				l.answers(func(ctx context.Context, _ []Swap, _ func() error) error {
					<-ctx.Done()
					return ctx.Err()
				})
			})
			time.Sleep(10 * time.Second)
			return carry()
		})
		err := one(s, "key")
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NotContains(t, err.Error(), "locked")
	})
}

// A caller leaves while the rows book for it, and another program locks the row for long. The store
// does not ask for the row again and again to return the booking.
func TestLock_ReturnOnALockedRowEnds(t *testing.T) {
	for name, locked := range map[string]time.Duration{"for a while": 500 * time.Millisecond, "for long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				l := &line{table: rows}
				s := New(l, Config{})
				require.NoError(t, one(s, "key"))
				l.answersOnce(func(_ context.Context, _ []Swap, carry func() error) error {
					err := carry()
					time.Sleep(100 * time.Millisecond)
					time.AfterFunc(locked, rows.hold("key"))
					return err
				})
				ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
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

// retried makes a call while before is called with the number of each call of Swap, before it is
// carried out. At most so many calls run at a time. The reply of the second one is lost. The call
// must be charged once.
func retried(t *testing.T, calls int, before func(rows *table, c *carrier, call int64)) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		l := &line{table: rows}
		c := newCarrier(unlocked{l}, &Config{})
		c.slots = make(chan struct{}, calls)
		s := &Store{engine: engine.New(engine.Config{Carrier: c, Timeout: time.Second})}
		require.NoError(t, one(s, "key"))
		var call atomic.Int64
		l.answers(func(_ context.Context, _ []Swap, carry func() error) error {
			number := call.Add(1)
			before(rows, c, number)
			err := carry()
			if number == 2 {
				return errLost
			}
			return err
		})
		require.NoError(t, one(s, "key"))
		time.Sleep(time.Second) // what is under way arrives
		rows.set(func() { rows.ahead = 0 })
		require.InDelta(t, 2, rows.level(t, "key"), 0.01)
	})
}

// The engine begins a second attempt, which waits. Meanwhile the first finds the row locked, so that
// the operation goes with the key's next step: the second attempt must not be carried out.
func TestStep_WaitingAttemptIsNotSentAfterIt(t *testing.T) {
	retried(t, 1, func(rows *table, c *carrier, call int64) {
		if call > 1 {
			return
		}
		free := rows.hold("key")
		time.Sleep(200 * time.Millisecond)
		go func() { // another key's call comes first
			c.slots <- struct{}{}
			time.Sleep(50 * time.Millisecond)
			free()
			<-c.slots
		}()
		time.Sleep(100 * time.Millisecond)
	})
}

// The same if the first attempt comes too early, because the clock was set back. Then a second one
// that is under way may still come in time.
func TestStep_NextToAnAttemptThatCameTooEarly(t *testing.T) {
	for name, turns := range map[string]int{"it waits": 1, "it is under way": 2} {
		t.Run(name, func(t *testing.T) {
			retried(t, turns, func(rows *table, c *carrier, call int64) {
				switch {
				case call == 1:
					rows.set(func() { rows.ahead = -400 * time.Millisecond })
					time.Sleep(200 * time.Millisecond)
					if turns == 1 {
						go func() {
							c.slots <- struct{}{}
							time.Sleep(200 * time.Millisecond)
							<-c.slots
						}()
					}
					time.Sleep(100 * time.Millisecond)
				case call == 2 && turns == 2:
					time.Sleep(250 * time.Millisecond)
				case call == 3:
					time.Sleep(300 * time.Millisecond)
				}
			})
		})
	}
}

// A step that locks its row tries as often as its time allows. The reply is that of the try which was written.
func TestStep_ReplyIsOfTheTryThatWasWritten(t *testing.T) {
	for _, lost := range []int{0, 1, 255, 256, 257, 600} {
		op := store.Op{Limits: []store.Limit{{Name: "calls", Capacity: 100, Rate: 1e-6}}, Action: store.Book, Costs: []store.Units{{1}}}
		s := &step{carrier: &carrier{worker: 1}, trip: &engine.Trip{Op: op, Seq: 7}}
		row := Row{Token: 1, Bytes: (&row{}).append(nil)}
		var last Swap
		for try := range lost + 1 {
			last = Swap{Row: row, Clock: time.Hour + time.Duration(try)*time.Second}
			require.NotNil(t, s.locked(bg, &last).made)
		}
		n := s.locked(bg, &Swap{Row: Row{Token: last.Token, Bytes: last.New}, Clock: 2 * time.Hour})
		require.Equal(t, last.New, n.made.bytes, "after %d tries that were not written", lost)
	}
}

// A key that has waited without success to lock a row has not asked the rows.
func TestStep_WaitForALockIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier(newTable(), &Config{})
		for range maxLocks {
			c.locks <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		var a engine.Attempt
		c.lock(ctx, &a)
		require.True(t, a.Unasked)
		require.True(t, a.Note.(*note).busy)
	})
}
