package outboundtest

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// The store of one process passes the conformance test, by the real clock.
func TestStore_Memory(t *testing.T) {
	TestStore(t, func(*testing.T) store.Store { return store.NewMemory() })
}

// distant is a store with a long way there and back.
type distant struct {
	store.Store
	way time.Duration
}

func (d distant) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	select {
	case <-ctx.Done():
		return store.Reply{}, ctx.Err()
	case <-time.After(d.way):
	}
	r, err := d.Store.Update(ctx, key, op)
	time.Sleep(d.way)
	return r, err
}

// StoreCases run in a bubble, and pass if each request takes long.
func TestStoreCases_DistantStore(t *testing.T) {
	for sentence, check := range StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, distant{store.NewMemory(), 200 * time.Millisecond}) })
		})
	}
}

// racer is a store that keeps each key as a value. Each step loses a race first: the racer drops
// what it has computed, and computes it again from the key.
type racer struct {
	mu   sync.Mutex
	rows map[string]store.Stored
	take func(store.Stored) store.Stored // the copy of a key to compute with
}

func (s *racer) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if err := ctx.Err(); err != nil {
		return store.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Duration(time.Now().UnixNano())
	lost, row := s.take(s.rows[key]), s.take(s.rows[key])
	op.Clone().Apply(&lost, now)
	r := op.Apply(&row, now)
	s.rows[key] = row
	return r, nil
}

// A store may compute a step twice on copies of a key. Copies that share slots are found.
func TestStoreCases_LostRaces(t *testing.T) {
	open := func(take func(store.Stored) store.Stored) func(int, *table) store.Store {
		return func(int, *table) store.Store { return &racer{rows: make(map[string]store.Stored), take: take} }
	}
	for _, failed := range examine(t, "", open(func(s store.Stored) store.Stored { return s.Clone() }), nil) {
		if !strings.HasPrefix(failed, "in any interval") { // those take several stores on one state
			t.Error(failed)
		}
	}
	if failed := examine(t, "any n leave", open(func(s store.Stored) store.Stored { return s }), nil); len(failed) == 0 {
		t.Error("a store whose lost races share the slots of a key has passed")
	}
}

// recorder is a tester that remembers whether a case has failed.
type recorder struct {
	mu     sync.Mutex
	failed []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// examine returns which of the sentences that begin so the stores fail. Each case has a bubble of
// its own.
func examine(t *testing.T, sentence string, open func(id int, on *table) store.Store, hooks func(*table) StoreHooks) (failed []string) {
	for _, c := range storeCases() {
		if !strings.HasPrefix(c.sentence, sentence) {
			continue
		}
		synctest.Test(t, func(*testing.T) {
			var r recorder
			on := newTable()
			e := &exam{tester: &r, sentence: c.sentence}
			if hooks != nil {
				e.hooks = hooks(on)
			}
			if c.needs != nil && !c.needs(e.hooks) {
				return
			}
			for id := range max(1, c.workers) {
				e.stores = append(e.stores, open(id, on))
			}
			e.store = e.stores[0]
			done := make(chan struct{})
			go func() { defer close(done); c.check(e) }()
			<-done
			if len(r.failed) > 0 {
				failed = append(failed, c.sentence+": "+r.failed[0])
			}
		})
	}
	return failed
}

// table is the state that several stores share.
type table struct {
	mu     sync.Mutex
	rows   map[string][]byte
	until  map[string]time.Time
	broken chan struct{} // closed when it is mended; nil: it is not broken
	late   time.Duration // by which requests arrive later
}

func newTable() *table {
	return &table{rows: make(map[string][]byte), until: make(map[string]time.Time)}
}

// all returns every hook for stores on a table.
func all(on *table) StoreHooks {
	return StoreHooks{
		Break: func(store.Store) func() {
			on.mu.Lock()
			defer on.mu.Unlock()
			on.broken = make(chan struct{})
			return func() {
				on.mu.Lock()
				defer on.mu.Unlock()
				close(on.broken)
				on.broken = nil
			}
		},
		Delay: func(_ store.Store, d time.Duration) func() {
			set := func(d time.Duration) {
				on.mu.Lock()
				defer on.mu.Unlock()
				on.late = d
			}
			set(d)
			return func() { set(0) }
		},
		Corrupt: func(_ store.Store, key string) {
			on.mu.Lock()
			defer on.mu.Unlock()
			on.rows[key] = []byte{99}
		},
		Reopen: func(s store.Store) store.Store {
			again := *s.(*mutant)
			again.table = &table{rows: maps.Clone(again.rows), until: maps.Clone(again.until)}
			return &again
		},
	}
}

// A store that is right passes each case, with every hook.
func TestStoreCases_RightStoresPass(t *testing.T) {
	for name, m := range map[string]mutant{
		"bytes":                            {},
		"JSON":                             {json: true},
		"writes only what has changed":     {lazy: true, forget: func(_ *store.Stored, r *store.Reply) time.Duration { return r.Expire }},
		"carries out a step that it fails": {halfway: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, failed := range examine(t, "", m.open, all) {
				t.Error(failed)
			}
		})
	}
}
