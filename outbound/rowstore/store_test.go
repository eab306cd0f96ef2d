package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A locked row delays no other, and is no outage.
func TestLock_DelaysNoOtherRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s := rowstore.New(rows, rowstore.Config{Observe: seen.observe})
		for i := range 40 {
			require.NoError(t, one(s, fmt.Sprint(i)))
		}
		lock := rows.lockOf(s.Key("0"))
		lock <- struct{}{} // as a person does, by hand
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
		<-lock
		require.NoError(t, one(s, "0"))
		require.Empty(t, seen.kinds())
		require.InDelta(t, 2, rows.level(t, "0"), 0.1)
	})
}

// Keys that wait for locked rows do not delay a key that many processes write by locks.
func TestLock_DelaysNoBusyRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		line := &badRows{table: rows, even: true, delay: time.Millisecond}
		s := rowstore.New(line, rowstore.Config{})
		const stuck = 5
		for i := range stuck {
			require.NoError(t, one(s, fmt.Sprint(i)))
			lock := rows.lockOf(s.Key(fmt.Sprint(i)))
			lock <- struct{}{}
			defer func() { <-lock }()
		}
		until := time.Now().Add(5 * time.Second)
		each(stuck+3, func(i int) {
			of, key := s, fmt.Sprint(i)
			if i >= stuck {
				of, key = rowstore.New(line, rowstore.Config{}), "key"
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

// hurried are rows that other processes write repeatedly, and lock for long.
type hurried struct{ *table }

func (h hurried) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	time.Sleep(time.Millisecond)
	err := h.table.Swap(ctx, nil)
	for i := range swaps {
		swaps[i].Clock, swaps[i].Row = h.clock(), rowstore.Row{Token: uint64(h.clock())}
	}
	return err
}

func (h hurried) Lock(_ context.Context, s *rowstore.Swap, _ func()) error {
	time.Sleep(400 * time.Millisecond)
	s.Busy = true
	return nil
}

// Keys that wait to lock a row are no outage.
func TestLock_WaitIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := rowstore.New(hurried{newTable()}, rowstore.Config{})
		each(20, func(i int) {
			err := one(s, fmt.Sprint(i))
			require.Error(t, err)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		})
	})
}

// Rows that the store cannot lock may be locked by other programs. The store pauses between attempts.
func TestLock_RowIsAskedForWithPauses(t *testing.T) {
	for _, form := range []string{"locks", "no locks"} {
		bubble(t, func(t *testing.T) {
			rows := newTable()
			line := &badRows{table: rows, even: true, delay: time.Millisecond}
			s := rowstore.New(forms(line)[form], rowstore.Config{})
			require.NoError(t, one(s, "key"))
			lock := rows.lockOf(s.Key("key"))
			lock <- struct{}{}
			var before, after int
			rows.set(func() { before = rows.asked })
			err := one(s, "key")
			require.ErrorContains(t, err, "keeps the row locked")
			require.NotErrorIs(t, err, store.ErrUnavailable)
			rows.set(func() { after = rows.asked })
			require.Less(t, after-before, 30)
			time.AfterFunc(300*time.Millisecond, func() { <-lock })
			start := time.Now()
			require.NoError(t, one(s, "key"))
			require.Less(t, time.Since(start), 500*time.Millisecond)
			require.InDelta(t, 2, rows.level(t, "key"), 0.1)
		})
	}
}

// At most six calls of Swap and Lock run at the same time.
func TestRows_FewCallsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &hanging{Locker: newTable()}
		s := rowstore.New(h, rowstore.Config{Timeout: time.Second})
		free := h.hang()
		defer free()
		each(100, func(i int) {
			start := time.Now()
			err := one(s, fmt.Sprint(i))
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Equal(t, 6, h.most)
	})
}

// failing are rows whose Swap and Lock fail.
type failing struct {
	*table
	err error
}

func (f *failing) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	if f.err != nil {
		return f.err
	}
	return f.table.Swap(ctx, swaps)
}

// An error of the rows is returned immediately, unless a wait may cure it.
func TestRows_Errors(t *testing.T) {
	errTable := errors.New("there is no such table")
	bubble(t, func(t *testing.T) {
		var seen events
		f := &failing{table: newTable()}
		s := rowstore.New(f, rowstore.Config{Observe: seen.observe})
		f.err = errTable
		start := time.Now()
		for range 3 {
			err := one(s, "key")
			require.ErrorIs(t, err, errTable)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		}
		require.Zero(t, time.Since(start), "no wait cures it")
		require.Equal(t, []store.StoreEventKind{store.EventDenied}, seen.kinds())
		f.err = nil
		require.NoError(t, one(s, "key"))
		f.err = errLost
		require.ErrorIs(t, one(s, "key"), errLost, "the cause")
		f.err = context.DeadlineExceeded
		time.Sleep(time.Second)
		require.ErrorIs(t, one(s, "key"), store.ErrUnavailable)
		f.err = nil
		time.Sleep(time.Second)
		require.NoError(t, one(s, "key"))
		require.Equal(t, []store.StoreEventKind{store.EventDenied, store.EventDown, store.EventUp}, seen.kinds())
		require.InDelta(t, 2, f.level(t, "key"), 0.1)
	})
}

// Copies of a state share the log of a window. A step that was given up leaves nothing in it.
func TestStore_GivenUpStepLeavesNothingInAWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &failing{table: newTable()}
		s := rowstore.New(f, rowstore.Config{})
		ask := func() (store.Reply, error) {
			op := calls(1)
			op.Limits = []store.Limit{{Kind: store.Window, Capacity: 10, Rate: 10. / 3600, Window: time.Hour}}
			return s.Update(context.Background(), "key", op)
		}
		for range 2 {
			_, err := ask()
			require.NoError(t, err)
		}
		f.err = errLost
		for range 3 {
			_, err := ask()
			require.ErrorIs(t, err, store.ErrUnavailable)
			time.Sleep(time.Second)
		}
		f.err = nil
		r, err := ask()
		require.NoError(t, err)
		require.Equal(t, 3., r.State.Level[0])
	})
}

// A store without rows returns an error.
func TestNew_NilRowsAreAnError(t *testing.T) {
	s := rowstore.New(nil, rowstore.Config{})
	err := one(s, "key")
	require.ErrorContains(t, err, "Rows")
	require.Zero(t, s.Stats())
	s = nil
	require.Zero(t, s.Stats())
}

// faulty are rows that report no time, or do not write what they have locked.
type faulty struct {
	*table
	clock bool
}

func (u faulty) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	err := u.table.Swap(ctx, swaps)
	for i := range swaps {
		if !u.clock {
			swaps[i].Clock = 0
		}
		if u.clock { // other processes write the row repeatedly
			swaps[i].Done, swaps[i].Row = false, rowstore.Row{Token: uint64(u.asked)}
		}
	}
	return err
}

func (u faulty) Lock(_ context.Context, s *rowstore.Swap, compute func()) error {
	s.Row, s.Clock = rowstore.Row{Token: 7}, u.table.clock()
	compute()
	return nil
}

// Rows that break the contract are an error.
func TestRows_FaultyOnesAreAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for clock, want := range map[bool]string{false: "no time", true: "not written"} {
			u := faulty{table: newTable(), clock: clock}
			s := rowstore.New(u, rowstore.Config{})
			require.NoError(t, one(u.store(), "key"))
			err := one(s, "key")
			require.ErrorContains(t, err, want)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		}
	})
}

// A corrupt row counts as full, until it has leaked or a Resume ends it.
func TestRow_CorruptCountsAsFull(t *testing.T) {
	stored := store.Stored{State: store.New(1, 1), Limits: []store.Limit{{Name: "calls", Capacity: 10, Rate: 1e-5}}, Number: 1}
	for name, level := range map[string]float64{"NaN": math.NaN(), "huge": 1e300, "infinite": math.Inf(1), "bytes": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				var seen events
				s := rowstore.New(rows, rowstore.Config{Observe: seen.observe})
				stored.State.Level[0] = level
				b := []byte{1, 0}
				if b, _ = stored.AppendBinary(b); level == 0 {
					b[0] = 99 // the format
				}
				rows.rows[string(s.Key("key"))] = rowstore.Row{Token: 5, Bytes: b}
				bucket := shared(s, 10, 1e-5)
				require.False(t, bucket.acquire(t))
				require.InDelta(t, 10, bucket.do(t, store.Op{}).State.Level[0], 0.1)
				require.Equal(t, []store.StoreEventKind{store.EventCorrupt}, seen.kinds())
				rows.set(func() { rows.rows[string(s.Key("key"))] = rowstore.Row{Token: 6, Bytes: b} })
				bucket.do(t, store.Op{})
				require.Equal(t, []store.StoreEventKind{store.EventCorrupt, store.EventCorrupt}, seen.kinds(), "and no loss: the bucket is full")
				require.False(t, bucket.acquire(t))
				time.Sleep(30 * time.Hour)
				require.True(t, bucket.acquire(t), "it is not shut permanently")
				rows.set(func() { rows.rows[string(s.Key("key"))] = rowstore.Row{Token: 7, Bytes: b} })
				require.False(t, bucket.acquire(t))
				bucket.do(t, store.Op{Action: store.Resume})
				require.InDelta(t, 0, bucket.do(t, store.Op{}).State.Level[0], 0.01)
			})
		})
	}
}

// A loss of data is reported once. A record that other processes push out is no loss.
func TestStore_LossOfDataIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s := rowstore.New(rows, rowstore.Config{Observe: seen.observe})
		name := string(s.Key("key"))
		require.NoError(t, one(s, "key"))
		var older rowstore.Row
		rows.set(func() { older = rows.rows[name] })
		require.NoError(t, one(s, "key"))
		require.Empty(t, seen.kinds())
		rows.set(func() { rows.rows[name] = older })
		require.NoError(t, one(s, "key"))
		require.Equal(t, []store.StoreEventKind{store.EventDataLoss}, seen.kinds())
		require.ErrorContains(t, seen.all[0].Err, "the latest charges are gone")
		time.Sleep(2 * time.Minute)
		rows.set(func() { delete(rows.rows, name) })
		require.NoError(t, one(s, "key"))
		require.Len(t, seen.kinds(), 2)
		require.ErrorContains(t, seen.all[1].Err, "the bucket starts empty")
		for range 40 { // they push the record of s out
			require.NoError(t, one(rows.store(), "key"))
		}
		time.Sleep(2 * time.Minute)
		require.NoError(t, one(s, "key"))
		require.Len(t, seen.kinds(), 2)
	})
}

// A process that was cut off has an old row. It does not write that over a new one.
func TestStore_OldRowOverwritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, other := rows.store(), rows.store()
		require.NoError(t, one(s, "key"))
		require.NoError(t, one(s, "key"))
		rows.set(func() { clear(rows.rows) })
		for range 5 { // as many writes as s knows of, and more
			require.NoError(t, one(other, "key"))
		}
		require.NoError(t, one(s, "key"))
		require.InDelta(t, 6, rows.level(t, "key"), 0.1)
	})
}

// A booking whose caller has left is returned.
func TestStore_CancelReturnsBooking(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		line := &badRows{table: rows, delay: time.Millisecond, dice: dice(t)}
		s := rowstore.New(line, rowstore.Config{Timeout: time.Minute})
		var mu sync.Mutex
		got := 0
		const rounds = 120
		each(16, func(i int) {
			op := calls(1)
			op.Into = make([]store.Charge, 0, 1)
			for range rounds {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i)*time.Millisecond/4)
				op.Costs[0][0] = 1
				r, err := s.Update(ctx, "key", op)
				op.Costs[0][0], op.Into = 1000, op.Into[:0] // the caller's memory is its own again
				cancel()
				if err == nil {
					mu.Lock()
					got += len(r.Charges)
					mu.Unlock()
				}
			}
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		level := rows.level(t, "key")
		require.Greater(t, got, 10)
		require.GreaterOrEqual(t, level, float64(got)-0.1)
		require.Less(t, level, float64(got)+0.5*float64(16*rounds-got), "most of what no caller has is returned")
	})
}

// A step that finds an older row returns nothing of charges from before: by now other calls have
// their numbers.
func TestStore_StepThatFindsALossReturnsNoUnitsOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, other := rows.store(), rows.store()
		name := string(s.Key("key"))
		ask := func(s *rowstore.Store, op *store.Op) store.Reply {
			r, err := s.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		ask(s, calls(1))
		var older rowstore.Row
		rows.set(func() { older = rows.rows[name] })
		var lost [3]store.Charge
		for i := range lost {
			lost[i] = ask(s, calls(1)).Charges[0]
		}
		rows.set(func() { rows.rows[name] = older })
		for range lost {
			ask(other, calls(1))
		}
		op := calls(1)
		op.Reports, op.Unused = []store.Report{{Kind: store.Settled, Charge: &lost[0]}}, []store.Charge{lost[2]}
		require.Len(t, ask(s, op).Charges, 1)
		require.InDelta(t, 5, ask(other, &store.Op{Limits: op.Limits, Base: op.Base}).State.Level[0], 0.1)
	})
}
