// Package rowstest is the conformance test of a [rowstore.Rows]. Its author calls [TestRows] in a
// test:
//
//	func TestRows(t *testing.T) {
//		rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return open(t) })
//	}
package rowstest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// TestRows checks each sentence of the contract of [rowstore.Rows], and of [rowstore.Locker] if the
// rows are one. Then it makes stores of the rows, and runs [outboundtest.TestStore] with all its
// hooks, so that it skips no case. newRows returns rows of one table, which need not be empty. Let
// each call return another Rows, as each process has. It takes about ten seconds.
func TestRows(t *testing.T, newRows func(t *testing.T) rowstore.Rows) {
	t.Run("rows", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.sentence, func(t *testing.T) {
				t.Parallel()
				c.check(&exam{tester: t, rows: newRows(t), other: newRows(t), sentence: c.sentence})
			})
		}
	})
	var lines sync.Map // by store
	open := func(rows rowstore.Rows) store.Store {
		l := &line{Rows: rows}
		s := rowstore.New(l.asRows(), rowstore.Config{Timeout: 4 * time.Second})
		lines.Store(s, l)
		return s
	}
	of := func(s store.Store) *line {
		l, _ := lines.Load(s)
		return l.(*line)
	}
	outboundtest.TestStore(t, func(t *testing.T) store.Store { return open(newRows(t)) }, outboundtest.StoreHooks{
		Break: func(s store.Store) (mend func()) {
			l, mended := of(s), make(chan struct{})
			l.answer(func(_ context.Context, _ []rowstore.Swap, carry func() error) error {
				<-mended
				return carry()
			})
			return func() {
				l.answer(nil)
				close(mended)
			}
		},
		Delay: func(s store.Store, d time.Duration) (stop func()) {
			l := of(s)
			l.answer(func(ctx context.Context, swaps []rowstore.Swap, carry func() error) error {
				if swaps == nil {
					return carry()
				}
				late := append([]rowstore.Swap(nil), swaps...)
				time.AfterFunc(d, func() { _ = l.Rows.Swap(context.Background(), late) })
				<-ctx.Done()
				return ctx.Err()
			})
			return func() { l.answer(nil) }
		},
		Corrupt: func(s store.Store, key string) {
			e := &exam{tester: t, rows: of(s).Rows, sentence: "a key that the test overwrites"}
			now := e.look(s.(*rowstore.Store).Key(key))
			e.write(now.Key, now.Row.Token, 1, []byte("corrupt"))
		},
		Reopen: func(s store.Store) store.Store { return open(of(s).Rows) },
	})
}

// line is what a store reaches its rows by.
type line struct {
	rowstore.Rows
	mu     sync.Mutex // protects around
	around func(ctx context.Context, swaps []rowstore.Swap, carry func() error) error
}

// answer has requests answered by f. The swaps of a Lock are nil.
func (l *line) answer(f func(context.Context, []rowstore.Swap, func() error) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.around = f
}

func (l *line) request(ctx context.Context, swaps []rowstore.Swap, carry func() error) error {
	l.mu.Lock()
	around := l.around
	l.mu.Unlock()
	if around == nil {
		return carry()
	}
	return around(ctx, swaps, carry)
}

// Swap implements [rowstore.Rows].
func (l *line) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	return l.request(ctx, swaps, func() error { return l.Rows.Swap(ctx, swaps) })
}

// lockLine is a line to rows that can be locked.
type lockLine struct{ *line }

// Lock implements [rowstore.Locker].
func (l lockLine) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	return l.request(ctx, nil, func() error { return l.Rows.(rowstore.Locker).Lock(ctx, s, compute) })
}

func (l *line) asRows() rowstore.Rows {
	if _, ok := l.Rows.(rowstore.Locker); ok {
		return lockLine{l}
	}
	return l
}
