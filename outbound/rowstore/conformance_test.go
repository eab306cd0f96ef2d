package rowstore_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Rows that cannot be locked pass the conformance test.
func TestConformance_WithoutLocks(t *testing.T) {
	rows := &mapRows{rows: make(map[string]rowstore.Row)}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return rowstore.New(rows, rowstore.Config{Timeout: time.Minute}) })
}

// delayed are rows whose requests arrive later while by is set.
type delayed struct {
	hanging
	mu sync.Mutex
	by time.Duration
}

func (d *delayed) set(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by = by
}

func (d *delayed) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	d.mu.Lock()
	by := d.by
	d.mu.Unlock()
	if by == 0 {
		return d.hanging.Swap(ctx, swaps)
	}
	late := append([]rowstore.Swap(nil), swaps...)
	time.AfterFunc(by, func() { _ = d.hanging.Swap(context.Background(), late) })
	<-ctx.Done()
	return ctx.Err()
}

// A store passes the conformance test with its faults.
func TestConformance_WithFaults(t *testing.T) {
	rows := newTable()
	var mu sync.Mutex
	lines := make(map[store.Store]*delayed)
	open := func() store.Store {
		d := &delayed{hanging: hanging{Locker: rows}}
		s := rowstore.New(d, rowstore.Config{Timeout: 1500 * time.Millisecond})
		mu.Lock()
		defer mu.Unlock()
		lines[s] = d
		return s
	}
	of := func(s store.Store) *delayed {
		mu.Lock()
		defer mu.Unlock()
		return lines[s]
	}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return open() }, outboundtest.StoreHooks{
		Break: func(s store.Store) (mend func()) { return of(s).hang() },
		Delay: func(s store.Store, by time.Duration) (stop func()) {
			of(s).set(by)
			return func() { of(s).set(0) }
		},
		Corrupt: func(s store.Store, key string) {
			name := string(s.(*rowstore.Store).Key(key))
			rows.set(func() { rows.rows[name] = rowstore.Row{Token: rand.Uint64() | 1, Bytes: []byte("corrupt")} })
		},
		Reopen: func(store.Store) store.Store { return open() },
	})
}

// A store behind a bad line passes the conformance test. The line loses no reply: a repeated reply
// has the state of a moment ago, and the test wants the state of now.
func TestConformance_OverABadLine(t *testing.T) {
	seed := dice(t).Uint64()
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute)
				line := &badRows{table: newTable(), lost: 0.1, repeated: 0.3, delay: time.Microsecond, dice: rand.New(rand.NewPCG(seed, 0))}
				defer line.wg.Wait()
				check(t, rowstore.New(line, rowstore.Config{Timeout: time.Minute}))
			})
		})
	}
}
