package outboundtest

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// TestStore is the conformance test that every [store.Store] passes. Each case is named for the
// sentence of the contract that it checks. newStore returns a store that is ready. It need not be
// empty, because the cases use keys of their own. If each call of newStore returns another store on
// the same state, some cases use four of them, as four processes do. Slow stores pass as well as
// fast ones. A case sleeps for at most a second, apart from its hooks.
func TestStore(t *testing.T, newStore func(t *testing.T) store.Store, hooks ...StoreHooks) {
	var h StoreHooks
	for _, more := range hooks {
		h = h.with(more)
	}
	for _, c := range storeCases() {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			if c.needs != nil && !c.needs(h) {
				t.Skip("there is no hook for this case")
			}
			e := &exam{tester: t, hooks: h, sentence: c.sentence}
			for range max(1, c.workers) {
				e.stores = append(e.stores, newStore(t))
			}
			e.store = e.stores[0]
			c.check(e)
		})
	}
}

// StoreHooks do to a store what the test cannot do from outside. Each is optional. The test skips
// the cases that need a hook which is nil: go test -v lists them. Package rowstore/rowstest has all
// hooks for any rows.
type StoreHooks struct {
	// Break makes the server behind s, or whatever keeps its state, answer s no more until mend is
	// called. It is best if the server hangs, and second best if it is down. Other stores go on.
	Break func(s store.Store) (mend func())
	// Delay makes each request that s sends until stop is called arrive later by d, even if s has
	// given up meanwhile. Requests that s sends after stop overtake them.
	Delay func(s store.Store, d time.Duration) (stop func())
	// Corrupt overwrites all that is kept of a key of s with bytes that s cannot read.
	Corrupt func(s store.Store, key string)
	// Reopen returns a store that knows only what s has saved. The test uses it in place of s.
	Reopen func(s store.Store) store.Store
}

func (h StoreHooks) with(more StoreHooks) StoreHooks {
	if more.Break != nil {
		h.Break = more.Break
	}
	if more.Delay != nil {
		h.Delay = more.Delay
	}
	if more.Corrupt != nil {
		h.Corrupt = more.Corrupt
	}
	if more.Reopen != nil {
		h.Reopen = more.Reopen
	}
	return h
}

// StoreCases yields the cases of [TestStore] one by one, except for those that need a hook of
// [StoreHooks]. With them a store that has the clock of this process can be tested in a bubble of
// testing/synctest.
func StoreCases() iter.Seq2[string, func(t *testing.T, s store.Store)] {
	return func(yield func(string, func(*testing.T, store.Store)) bool) {
		for _, c := range storeCases() {
			if c.needs != nil {
				continue
			}
			ok := yield(c.sentence, func(t *testing.T, s store.Store) {
				c.check(&exam{tester: t, store: s, stores: []store.Store{s}, sentence: c.sentence})
			})
			if !ok {
				return
			}
		}
	}
}

// The cases, by the files that they are in.
func storeCases() []storeCase {
	return slices.Concat(levelCases, bookCases, holdCases, changeCases, windowCases, calendarCases, slotCases, fleetCases, keepCases, faultCases)
}

type storeCase struct {
	sentence string
	check    func(*exam)
	workers  int                   // stores that it uses; 0 is one
	needs    func(StoreHooks) bool // whether these hooks are enough, or nil
}

// exam is one case under way.
type exam struct {
	tester
	store    store.Store
	stores   []store.Store // of several processes, the first being store
	hooks    StoreHooks
	sentence string
}

// tester is what a case needs of a *testing.T.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var bg = context.Background()

func (e *exam) failf(format string, args ...any) {
	e.Helper()
	e.Errorf("the contract says %q: %s", e.sentence, fmt.Sprintf(format, args...))
}

func (e *exam) key() string { return fmt.Sprintf("exam:%x", rand.Uint64()) }

// ask has the store carry out a step.
func (e *exam) ask(key string, op *store.Op) store.Reply {
	e.Helper()
	r, err := e.store.Update(bg, key, op)
	if err != nil {
		e.Fatalf("the contract says %q: %v", e.sentence, err)
	}
	return r
}

// slow leaks a thousandth of a unit in 36 s: nothing, in a test.
func slow(capacity float64) store.Limit { return leaky(capacity, 1./36000) }

func leaky(capacity, rate float64) store.Limit { return store.Limit{Capacity: capacity, Rate: rate} }

func moving(n float64, w time.Duration) store.Limit {
	return store.Limit{Name: "window", Kind: store.Window, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

func fixed(n float64, w time.Duration) store.Limit {
	return store.Limit{Name: "fixed window", Kind: store.Fixed, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

// daily is a limit by the calendar. A store has no calendar: its periods are as long as the test
// says.
func daily(n float64) store.Limit {
	return store.Limit{Name: "day", Kind: store.Daily, Capacity: n, Zone: "UTC"}
}

// named returns l with another name and unit.
func named(l store.Limit, unit int8, name string) store.Limit {
	l.Unit, l.Name = unit, name
	return l
}
