package outbound

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// What a call has cost beyond its cost counts in limits that it was not booked
// under, too, and nothing comes back from them.
func TestSettle_AddsUnderLimitsSetSince(t *testing.T) {
	calls, tokens := Limit{Capacity: 100, LeakRate: 1e-6}, Limit{Capacity: 100, LeakRate: 1e-6, Unit: 1}
	for name, c := range map[string]struct{ used, want float64 }{"more": {35, 50}, "the same": {20, 35}, "less": {5, 35}} {
		for _, changes := range []int{1, 2, 3} {
			for _, hears := range []bool{true, false} { // the worker, of each change
				store := store.NewMemory()
				mine, other := Must(NewSharedBucket(store, "k", calls)), Must(NewSharedBucket(store, "k", calls))
				p := mustAcquireCost(t, mine, Cost{10, 20})
				for i := range changes {
					to := tokens
					to.Capacity += float64(changes - 1 - i) // the last is it
					if err := other.SetLimits(ctx, to); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						mustAcquireCost(t, other, Cost{30, 35})
					}
					if hears {
						states(t, mine)
					}
				}
				p.Settle(Cost{10, c.used})
				if got := level(t, mine, 0); math.Abs(got-c.want) > 1e-3 {
					t.Errorf("%s, %d changes, heard of %v: level %v, want %v", name, changes, hears, got, c.want)
				}
			}
		}
	}
}

func mustAcquireCost(t *testing.T, b *Bucket, c Cost) *Permit {
	t.Helper()
	p, err := b.Acquire(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// A charge keeps what limits say that stay. A new one counts the call as its cost says.
func TestLimits_AlignCharge(t *testing.T) {
	a, b := Limit{Capacity: 100, LeakRate: 1}, Limit{Capacity: 100, LeakRate: 1, Unit: 1}
	first, second, third := newLimitSet([]Limit{a}), newLimitSet([]Limit{b, a}), newLimitSet([]Limit{a.Of(0, "other")})
	charge := store.Charge{N: store.Units{10}, Y: store.Units{40}, Up: store.Units{1}, Place: 3 * time.Second, Number: 7}
	c := second.align(&charge, &first, &Cost{10, 7})
	if c.N != (store.Units{7, 10}) || c.Y != (store.Units{0, 40}) || c.Up != (store.Units{0, 1}) || c.Place != charge.Place || c.Number != 7 {
		t.Errorf("%+v", c)
	}
	if c = third.align(&charge, &first, &Cost{12}); c.N != (store.Units{12}) || c.Y != (store.Units{}) {
		t.Errorf("of none that has stayed: %+v", c)
	}
	if c = first.align(&charge, &first, &Cost{12}); c != &charge {
		t.Errorf("copied: %+v", c)
	}
}

func TestBook_RefusedMoveChangesNoSettle(t *testing.T) {
	for _, tried := range []bool{false, true} {
		calls, tokens := Limit{Capacity: 10, LeakRate: 1e-6}, Limit{Capacity: 10, LeakRate: 1e-6, Unit: 1}
		b := Must(NewSharedBucket(store.NewMemory(), "k", calls))
		k := BookRequest{Costs: []Cost{{1, 4}}, Wait: time.Hour}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		ticket := k.Tickets[0]
		if err := b.SetLimits(ctx, calls, tokens); err != nil {
			t.Fatal(err)
		}
		if tried {
			move := BookRequest{Move: ticket, Costs: []Cost{{1, 4}}, Wait: time.Hour}
			if err := b.Book(ctx, &move); err != nil || len(move.Tickets) > 0 {
				t.Fatalf("moved under limits that do not know of it: %v", err)
			}
		}
		p := ticket.Permit()
		p.Settle(Cost{1, 5})
		if got := level(t, b, 1); math.Abs(got-1) > 1e-3 { // what is beyond the cost
			t.Errorf("tried %v: level %v, want 1", tried, got)
		}
	}
}

// Under other limits the new place could be a later one, and the call had one already.
func TestBook_NoMoveUnderOtherLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, b := range map[string]*Bucket{
			"of its own": Must(NewBucket("api", Limit{Capacity: 1, LeakRate: 2})),
			"shared":     Must(NewSharedBucket(store.NewMemory(), "api", Limit{Capacity: 1, LeakRate: 2})),
		} {
			mustAcquireCost(t, b, Cost{1})
			k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
			if err := b.Book(ctx, &k); err != nil {
				t.Fatal(err)
			}
			ticket := k.Tickets[0]
			if err := b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 0.01}); err != nil {
				t.Fatal(err)
			}
			move := BookRequest{Move: ticket, Costs: []Cost{{1}}, Wait: time.Hour}
			if err := b.Book(ctx, &move); err != nil || len(move.Tickets) != 0 {
				t.Errorf("%s: moved to %v, %v", kind, move.Clock.Due(move.Tickets[0]), err)
			}
			if in := time.Until(move.Clock.Due(ticket)); in != 500*time.Millisecond {
				t.Errorf("%s: it is due in %v", kind, in)
			}
		}
	})
}

func TestBook_MoveOfATooLargeCostUndoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, b := range map[string]*Bucket{
			"of its own": Must(NewBucket("api", Limit{Capacity: 5, LeakRate: 10})),
			"shared":     Must(NewSharedBucket(store.NewMemory(), "api", Limit{Capacity: 5, LeakRate: 10})),
		} {
			mustAcquireCost(t, b, Cost{5})
			k := BookRequest{Costs: []Cost{{5}}, Wait: time.Minute}
			if err := b.Book(ctx, &k); err != nil {
				t.Fatal(err)
			}
			ticket := k.Tickets[0]
			if err := b.SetLimits(ctx, Limit{Capacity: 3, LeakRate: 10}); err != nil {
				t.Fatal(err)
			}
			move := BookRequest{Move: ticket, Costs: []Cost{{5}}, Wait: time.Minute}
			if err := b.Book(ctx, &move); !errors.Is(err, ErrTooLarge) {
				t.Fatalf("%s: %v", kind, err)
			}
			if got := level(t, b, 0); got != 10 {
				t.Errorf("%s: level %v after the try, want 10", kind, got)
			}
			back := BookRequest{Back: []Ticket{ticket}}
			if err := b.Book(ctx, &back); err != nil {
				t.Fatal(err)
			}
			if got := level(t, b, 0); got != 5 {
				t.Errorf("%s: level %v after it was given back, want 5", kind, got)
			}
		}
	})
}

func TestBook_FirstCallIsIndependentOfTheSecond(t *testing.T) {
	for _, b := range []*Bucket{
		Must(NewBucket("api", Limit{Capacity: 2, LeakRate: 1e-3})),
		Must(NewSharedBucket(store.NewMemory(), "api", Limit{Capacity: 2, LeakRate: 1e-3})),
	} {
		mustAcquireCost(t, b, Cost{2})
		k := BookRequest{Costs: []Cost{{1}, {5}}}
		if err := b.Book(ctx, &k); !errors.Is(err, ErrThrottled) {
			t.Errorf("full: %v", err)
		}
		k = BookRequest{Costs: []Cost{{1}, {5}}, Wait: time.Hour, Horizon: time.Hour}
		if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
			t.Errorf("%d tickets, %v", len(k.Tickets), err)
		}
		k = BookRequest{Costs: []Cost{{5}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		if err := b.Book(ctx, &k); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
	}
}

func TestSetLimits_KeepsNoMemoryOfChanges(t *testing.T) {
	for _, b := range []*Bucket{Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1})), Must(NewSharedBucket(store.NewMemory(), "k", Limit{Capacity: 1, LeakRate: 1}))} {
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		const changes = 20_000
		for i := range changes {
			if err := b.SetLimits(ctx, Limit{Capacity: 2 + float64(i%2), LeakRate: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if grown := int64(heap()) - int64(before); grown > changes*50 {
			t.Errorf("%d bytes are kept of %d changes", grown, changes)
		}
		runtime.KeepAlive(b)
	}
}

func TestSetLimits_InFlightKeepsItsName(t *testing.T) {
	slots := InFlight(1)
	slots.Name = "slots"
	b := Must(NewSharedBucket(store.NewMemory(), "k", Limit{Capacity: 10, LeakRate: 1}, slots))
	if err := b.SetLimits(ctx, Limit{Capacity: 20, LeakRate: 1}); err != nil {
		t.Fatal(err)
	}
	mustAcquireCost(t, b, Cost{1})
	var full *ThrottledError
	if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Limit != "slots" || full.InProgress != 1 {
		t.Errorf("%v", err)
	}
}

// flipping is a store in which others set limits before each operation.
type flipping struct {
	store.Store
	other *Bucket
	n     int
	busy  bool
}

func TestSetLimits_EndlessChangesAreAnError(t *testing.T) {
	memory := store.NewMemory()
	f := &flipping{Store: memory, other: Must(NewSharedBucket(memory, "k", Limit{Capacity: 10, LeakRate: 1}))}
	b := Must(NewSharedBucket(f, "k", Limit{Capacity: 10, LeakRate: 1}))
	var failed *StoreError
	if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &failed) || !errors.Is(err, errStale) {
		t.Errorf("%v", err)
	}
	if f.n != mostTries+1 {
		t.Errorf("%d trips", f.n)
	}
	f.busy = true
	if _, err := b.Acquire(ctx, Cost{1}); err != nil {
		t.Errorf("once they stay: %v", err)
	}
}

func (f *flipping) Update(c context.Context, key string, op *store.Op) (store.Reply, error) {
	if !f.busy {
		f.n++
		if err := f.other.SetLimits(c, Limit{Capacity: 10, LeakRate: 1, Name: fmt.Sprint(f.n)}); err != nil {
			return store.Reply{}, err
		}
	}
	return f.Store.Update(c, key, op)
}

func TestSetLimits_InvalidOnesInAStoreAreAStoreError(t *testing.T) {
	refused := func(name string, l liar) {
		b := Must(NewSharedBucket(l, "k", Limit{Capacity: 10, LeakRate: 1}))
		var failed *StoreError
		if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &failed) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, limits := range map[string][]store.Limit{
		"one name twice": {{Capacity: 1, Rate: 1}, {Capacity: 1, Rate: 1}},
		"no capacity":    {{Rate: 1}},
		"a unit too far": {{Capacity: 1, Rate: 1, Unit: 7}},
		"nine":           make([]store.Limit, 9),
		"no such kind":   {{Capacity: 1, Kind: 77}},
		"no such zone":   {{Capacity: 1, Kind: store.Daily, Zone: "Europe/Nowhere"}},
		"no zone":        {{Capacity: 1, Kind: store.Monthly}},
		"this machine's": {{Capacity: 1, Kind: store.Monthly, Zone: "Local"}},
		"a leak's zone":  {{Capacity: 1, Rate: 1, Zone: "UTC"}},
		"short":          {{Capacity: 1, Rate: 1e9, Kind: store.Window, Window: 1}},
		"no window":      {{Capacity: 1, Rate: 1, Kind: store.Fixed}},
		"a wrong rate":   {{Capacity: 1, Rate: 2, Kind: store.Fixed, Window: time.Second}},
		"too long":       {{Capacity: 1, Rate: 1e-10, Kind: store.Window, Window: math.MaxInt64}},
	} {
		refused(name, liar{limits, 5})
	}
}

// liar is a store in which limits are said to be set.
type liar struct {
	limits []store.Limit
	number int64
}

func (l liar) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{Stale: true, Number: l.number, Limits: l.limits}, nil
}

func TestSetLimits_StatesAreOfOneMoment(t *testing.T) {
	a := Limit{Capacity: 1, LeakRate: 1}
	b := Must(NewBucket("k", a))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 2000 {
			b.SetLimits(ctx, a)
			b.SetLimits(ctx, a, a.Of(0, "b"), a.Of(0, "c"), InFlight(1))
		}
	})
	for range 4000 {
		all, err := b.States(ctx)
		if err != nil || len(all) != 1 && len(all) != 4 {
			t.Fatalf("%d states, %v", len(all), err)
		}
	}
	wg.Wait()
}

// A window that is made shorter refills nothing: the calls of its last moments count for as long as the new one is.
func TestSetLimits_ShorterWindowForgetsNoCall(t *testing.T) {
	for name, window := range map[string]func(float64, time.Duration) Limit{"moving": Window, "fixed": FixedWindow} {
		for _, shared := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := Must(NewBucket("key", window(100, 6*time.Second)))
				if shared {
					b = Must(NewSharedBucket(store.NewMemory(), "key", window(100, 6*time.Second)))
				}
				calls := func(n float64) error { _, err := b.Acquire(ctx, Cost{n}); return err }
				first := calls(1)
				time.Sleep(5 * time.Second)
				if err := errors.Join(first, calls(99), b.SetLimits(ctx, window(10, 400*time.Millisecond))); err != nil {
					t.Fatal(err)
				}
				var full *ThrottledError
				if err := calls(1); !errors.As(err, &full) || full.RetryAfter != 410*time.Millisecond {
					t.Errorf("%s, shared %v: after 99 calls another one: %v", name, shared, err)
				}
				time.Sleep(410 * time.Millisecond)
				if err := calls(10); err != nil {
					t.Errorf("%s, shared %v: %v", name, shared, err)
				}
			})
		}
	}
}

func TestSetLimits_ReturningLimitReturnsNoOldUnits(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			first, second := Limit{Capacity: 10, LeakRate: 1, Name: "first"}, Limit{Capacity: 10, LeakRate: 1, Name: "second"}
			b := Must(NewBucket("again", first))
			if shared {
				b = Must(NewSharedBucket(store.NewMemory(), "again", first))
			}
			p, err := b.Acquire(ctx, Cost{10})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for _, l := range []Limit{second, first} {
				if err := b.SetLimits(ctx, l); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.Acquire(ctx, Cost{3}); err != nil {
				t.Fatal(err)
			}
			p.Settle(Cost{})
			if s, err := b.State(ctx); err != nil || s.Level != 3 {
				t.Errorf("level %v (%v), want 3", s.Level, err)
			}
		})
	}
}

// A name that the user gave stays the user's, also if it reads like what another limit says.
func TestSetLimits_KeepsNamesThatUsersGave(t *testing.T) {
	for name, make := range map[string]func(limits ...Limit) (*Bucket, error){
		"in memory": func(limits ...Limit) (*Bucket, error) { return NewBucket("k", limits...) },
		"shared":    func(limits ...Limit) (*Bucket, error) { return NewSharedBucket(store.NewMemory(), "k", limits...) },
	} {
		b := Must(make(PerSecond(10).Of(0, "10 per 1s")))
		if err := b.SetLimits(ctx, PerSecond(20).Of(0, "20 per 1s")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s, err := b.State(ctx)
			if n, _ := s.Limit.Each(); err != nil || s.Limit.Name != "20 per 1s" || n != 20 {
				t.Errorf("%s: the limit is %v, n %v, %v", name, s.Limit, n, err)
			}
		}
	}
}
