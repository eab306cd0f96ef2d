package rowstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A step is carried out once, whatever the line loses and repeats.
func TestStore_StepIsCarriedOutOnceOverABadLine(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				bubble(t, func(t *testing.T) {
					rows := newTable()
					seed := dice(t).Uint64()
					each(3, func(i int) {
						l := &line{table: rows, lost: 0.2, noReply: 0.2, repeated: 0.3, delay: 2 * time.Millisecond, dice: rand.New(rand.NewPCG(seed, uint64(i)))}
						s := New(form(l), Config{Timeout: time.Minute})
						each(4, func(i int) {
							for range 20 {
								r, err := s.Update(bg, "key", calls(1+i%2))
								if err != nil || len(r.Charges) != 1+i%2 {
									t.Errorf("got %d charges and %v", len(r.Charges), err)
								}
							}
						})
						l.wg.Wait()
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
		l := &line{table: rows}
		s := New(l, Config{})
		require.NoError(t, one(s, "key"))
		for _, others := range []int{31, 32} {
			before := rows.level(t, "key")
			l.answers(func(_ context.Context, _ []Swap, carry func() error) error {
				_ = carry() // never fails
				return errLost
			})
			time.AfterFunc(time.Millisecond, func() { // before the step is sent again
				l.answers(nil)
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

// A step of a process whose record other processes have pushed out of the row is carried out once,
// and does not fail: 40 processes share a row that records 32.
func TestStore_MoreProcessesThanRecordsFailNoStep(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := newTable()
				each(40, func(i int) {
					s := New(form(&line{table: rows, delay: time.Millisecond + time.Duration(i)}), Config{Timeout: time.Minute})
					for range 5 {
						require.NoError(t, one(s, "key"))
					}
				})
			})
		})
	}
}

// A process that is alone makes one request for each decision. If processes write a row in turn,
// each finds it written by another one, and swaps it once more. Stats counts all requests.
func TestStore_RequestsOfADecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		first, other := rows.store(), rows.store()
		const rounds = 100
		for range rounds {
			require.NoError(t, one(first, "key"))
		}
		require.Equal(t, rounds+1, rows.asked, "the first finds the row and the clock")
		require.Equal(t, rounds, rows.writes)
		for range rounds {
			for _, s := range []*Store{other, first} {
				require.NoError(t, one(s, "key"))
			}
		}
		require.Equal(t, 5*rounds+1, rows.trips)
		is := first.Stats()
		require.Equal(t, uint64(2*rounds), is.Answered)
		require.Equal(t, uint64(3*rounds+1), is.Requests.Count)
		require.Zero(t, is.Failed+is.Cancelled+is.Remembered+is.Repeats)
		require.Nil(t, is.Outages)
	})
}

// An error of the rows is returned immediately, unless a wait may cure it.
func TestRows_Errors(t *testing.T) {
	errTable := errors.New("there is no such table")
	bubble(t, func(t *testing.T) {
		var seen events
		l := &line{table: newTable()}
		s := New(l, Config{Observe: seen.observe})
		fails := func(err error) {
			l.answers(func(context.Context, []Swap, func() error) error { return err })
		}
		fails(errTable)
		start := time.Now()
		for range 3 {
			err := one(s, "key")
			require.ErrorIs(t, err, errTable)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		}
		require.Zero(t, time.Since(start), "no wait cures it")
		require.Equal(t, []store.StoreEventKind{store.EventDenied}, seen.kinds())
		fails(errLost)
		require.ErrorIs(t, one(s, "key"), errLost, "the cause")
		fails(context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.ErrorIs(t, one(s, "key"), store.ErrUnavailable)
		l.answers(nil)
		time.Sleep(time.Second)
		require.NoError(t, one(s, "key"))
		require.Equal(t, []store.StoreEventKind{store.EventDenied, store.EventDown, store.EventUp}, seen.kinds())
		require.InDelta(t, 1, l.level(t, "key"), 0.1)
	})
}

// A store without rows returns an error.
func TestNew_NilRowsAreAnError(t *testing.T) {
	s := New(nil, Config{})
	require.ErrorContains(t, one(s, "key"), "Rows")
	require.Zero(t, s.Stats())
	require.Zero(t, (*Store)(nil).Stats())
}

// unwritten are rows that do not write what they have locked.
type unwritten struct{ *line }

func (u unwritten) Lock(ctx context.Context, s *Swap, compute func()) error {
	err := u.line.Lock(ctx, s, compute)
	s.Done = false
	return err
}

// Rows that break the contract are an error.
func TestRows_FaultyOnesAreAnError(t *testing.T) {
	for want, fault := range map[string]func(s *Swap){
		"no time":     func(s *Swap) { s.Clock = 0 },
		"not written": func(s *Swap) { s.Done, s.Row = false, Row{Token: random()} }, // by another process
	} {
		bubble(t, func(t *testing.T) {
			rows := newTable()
			require.NoError(t, one(rows.store(), "key"))
			l := (&line{table: rows}).answers(func(_ context.Context, swaps []Swap, carry func() error) error {
				err := carry()
				for i := range swaps {
					fault(&swaps[i])
				}
				return err
			})
			err := one(New(unwritten{l}, Config{}), "key")
			require.ErrorContains(t, err, want)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		})
	}
}

// A loss of data is reported once. A record that other processes push out is no loss, nor is a row that has expired.
func TestStore_LossOfDataIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s := New(rows, Config{Observe: seen.observe})
		name := string(s.Key("key"))
		require.NoError(t, one(s, "key"))
		older := rows.rows[name]
		require.NoError(t, one(s, "key"))
		require.Empty(t, seen.kinds())
		rows.rows[name] = older
		require.NoError(t, one(s, "key"))
		require.Equal(t, []store.StoreEventKind{store.EventDataLoss}, seen.kinds())
		require.ErrorContains(t, seen.all[0].Err, "the latest charges are gone")
		time.Sleep(2 * time.Minute)
		delete(rows.rows, name)
		require.NoError(t, one(s, "key"))
		require.Len(t, seen.kinds(), 2)
		require.ErrorContains(t, seen.all[1].Err, "the bucket starts empty")
		for range 40 { // they push the record of s out
			require.NoError(t, one(rows.store(), "key"))
		}
		time.Sleep(2 * time.Minute)
		require.NoError(t, one(s, "key"))
		time.Sleep(1000 * time.Hour) // for longer than a row is kept
		delete(rows.rows, name)
		require.NoError(t, one(s, "key"))
		require.Len(t, seen.kinds(), 2)
	})
}

// A step that finds an older row returns nothing of charges from before: by now other calls have
// their numbers.
func TestStore_LossOfDataReturnsNoUnitsOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, other := rows.store(), rows.store()
		name := string(s.Key("key"))
		require.NoError(t, one(s, "key"))
		older := rows.rows[name]
		r, err := s.Update(bg, "key", calls(3))
		require.NoError(t, err)
		rows.rows[name] = older
		for range 3 {
			require.NoError(t, one(other, "key"))
		}
		op := calls(1)
		op.Reports, op.Unused = []store.Report{{Kind: store.Settled, Charge: &r.Charges[0]}}, r.Charges[2:]
		_, err = s.Update(bg, "key", op)
		require.NoError(t, err)
		require.InDelta(t, 5, rows.level(t, "key"), 0.1)
	})
}

// A process that was cut off has an old row. It does not write that over a new one.
func TestStore_OldRowOverwritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, other := rows.store(), rows.store()
		require.NoError(t, one(s, "key"))
		require.NoError(t, one(s, "key"))
		clear(rows.rows)
		for range 5 { // as many writes as s knows of, and more
			require.NoError(t, one(other, "key"))
		}
		require.NoError(t, one(s, "key"))
		require.InDelta(t, 6, rows.level(t, "key"), 0.1)
	})
}

// A row is kept for as long as its state matters, and not much longer. If a call has cost far more
// than its capacity, its level leaks for ages, and the time overflows.
func TestRow_IsKeptWhileItMatters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, limit := rows.store(), store.Limit{Name: "calls", Capacity: 100, Rate: 1}
		c := ask(t, s, limit, store.Op{Action: store.Book, Costs: []store.Units{{60}}}).Charges[0]
		require.InDelta(t, 2*60, rows.keep.Seconds(), 5)
		faster := []store.Limit{{Name: "calls", Capacity: 100, Rate: 2}}
		ask(t, s, limit, store.Op{Action: store.Replace, Number: 1, Replacement: faster})
		require.InDelta(t, 30*24, rows.keep.Hours(), 1)
		ask(t, s, limit, store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &c, Used: store.Units{1e14}}}})
		require.InDelta(t, 100, rows.keep.Hours()/24/365, 1)
	})
}

// Each key has a row of its own, whose name is short and hides the key unless PlainKeys is set.
func TestRow_Names(t *testing.T) {
	s, plain := newTable().store(), New(newTable(), Config{PlainKeys: true})
	long := string(make([]byte, 10<<20))
	keys := []string{"", "a", "A", "a ", "\x00fallback", "\x00beside\"line\"a", "\xff\xfe", "#", "#a", long, long + "a", string(s.Key("a"))}
	for _, s := range []*Store{s, plain} {
		names := make(map[string]bool)
		for _, key := range keys {
			name := string(s.Key(key))
			require.LessOrEqual(t, len(name), 512)
			require.False(t, names[name], "%.20q has the row of another key", key)
			names[name] = true
		}
	}
	require.Equal(t, []byte("tenant 17"), plain.Key("tenant 17"))
	require.NotContains(t, string(s.Key("secret")), "secret")
}

// A row takes what the package says.
func TestRow_IsSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		for i, most := range []int{100, 220} {
			for range 1 + 9*i {
				require.NoError(t, one(rows.store(), "key"))
			}
			for _, r := range rows.rows {
				require.LessOrEqual(t, len(r.Bytes), most)
			}
		}
	})
}

// A corrupt row is reported, and is no loss of data. It counts as full until it has leaked.
func TestRow_CorruptCountsAsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s, limit := New(rows, Config{Observe: seen.observe}), store.Limit{Name: "calls", Capacity: 10, Rate: 1e-4}
		require.Len(t, ask(t, s, limit, *calls(1)).Charges, 1)
		rows.set(func() { rows.rows[string(s.Key("key"))] = Row{Token: 5, Bytes: []byte{99, 0}} })
		require.True(t, ask(t, s, limit, *calls(1)).Refused)
		require.InDelta(t, 10, ask(t, s, limit, store.Op{}).State.Level[0], 0.1)
		require.Equal(t, []store.StoreEventKind{store.EventCorrupt}, seen.kinds())
		time.Sleep(3 * time.Hour)
		require.Len(t, ask(t, s, limit, *calls(1)).Charges, 1, "it is not shut permanently")
	})
}

// Any bytes are a row: corrupt ones count as full.
func FuzzRow(f *testing.F) {
	rows := newTable()
	require.NoError(f, one(rows.store(), "key"))
	for _, r := range rows.rows {
		f.Add(r.Bytes)
		for _, at := range []int{0, 1, 2, 10, 14, 20, len(r.Bytes) - 1} {
			bad := append([]byte(nil), r.Bytes...)
			bad[at] ^= 0xff
			f.Add(bad)
			f.Add(bad[:at])
		}
	}
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<62))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows := newTable()
		s := rows.store()
		rows.rows[string(s.Key("key"))] = Row{Token: 1, Bytes: b}
		for i := range 3 {
			r, err := s.Update(bg, "key", calls(1))
			require.NoError(t, err, i)
			require.GreaterOrEqual(t, r.State.Level[0], 0.)
		}
	})
}
