package rowstore_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// hanging are rows that do not answer until the test lets them.
type hanging struct {
	rowstore.Locker
	mu    sync.Mutex
	until chan struct{} // nil: they answer
	calls int           // that are under way now
	most  int
}

func (h *hanging) hang() (free func()) {
	until := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = until
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.until = nil
		close(until)
	}
}

func (h *hanging) wait() {
	h.mu.Lock()
	until := h.until
	h.calls++
	h.most = max(h.most, h.calls)
	h.mu.Unlock()
	if until != nil {
		<-until
	}
	h.mu.Lock()
	h.calls--
	h.mu.Unlock()
}

func (h *hanging) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	h.wait()
	return h.Locker.Swap(ctx, swaps)
}

func (h *hanging) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	h.wait()
	return h.Locker.Lock(ctx, s, compute)
}

func TestTheExam(t *testing.T) {
	for name, rows := range map[string]rowstore.Rows{
		"map":   &mapRows{rows: make(map[string]rowstore.Row)},
		"locks": newTable(),
	} {
		t.Run(name, func(t *testing.T) {
			outboundtest.TestStore(t, func(*testing.T) leak.Store { return rowstore.New(rows, rowstore.Config{Timeout: time.Minute}) })
		})
	}
}

func TestTheExamWhereTheRowsHang(t *testing.T) {
	rows := newTable()
	var mu sync.Mutex
	ways := make(map[leak.Store]*hanging)
	open := func() leak.Store {
		h := &hanging{Locker: rows}
		s := rowstore.New(h, rowstore.Config{Timeout: 1500 * time.Millisecond})
		mu.Lock()
		defer mu.Unlock()
		ways[s] = h
		return s
	}
	outboundtest.TestStore(t, func(*testing.T) leak.Store { return open() }, outboundtest.StoreHooks{
		Break: func(s leak.Store) (mend func()) {
			mu.Lock()
			defer mu.Unlock()
			return ways[s].hang()
		},
		Reopen: func(leak.Store) leak.Store { return open() },
	})
}

// The line loses no reply. A repeated reply tells the state of a moment ago, and the exam wants
// the state of now.
func TestTheExamOverABadLine(t *testing.T) {
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
