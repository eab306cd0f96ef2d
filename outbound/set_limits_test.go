package outbound

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// What a call has used beyond its cost counts in limits that were set after its admission, and nothing
// is returned from them.
func TestSettle_AddsUnderLimitsSetSince(t *testing.T) {
	calls, tokens := Limit{Capacity: 100, LeakRate: 1e-6}, Limit{Capacity: 100, LeakRate: 1e-6, Unit: 1}
	for name, c := range map[string]struct{ used, want float64 }{"more": {35, 50}, "the same": {20, 35}, "less": {5, 35}} {
		for _, changes := range []int{1, 2, 3} {
			for _, learns := range []bool{true, false} { // the process, of each change
				store := store.NewMemory()
				mine, other := Must(NewSharedBucket(store, "k", calls)), Must(NewSharedBucket(store, "k", calls))
				p := admit(t, mine, 10, 20)
				for i := range changes {
					to := tokens
					to.Capacity += float64(changes - 1 - i) // the last is it
					must(t, other.SetLimits(ctx, to))
					if i == 0 {
						admit(t, other, 30, 35)
					}
					if learns {
						states(t, mine)
					}
				}
				p.Settle(Cost{10, c.used})
				if got := level(t, mine, 0); math.Abs(got-c.want) > 1e-3 {
					t.Errorf("%s, %d changes, learned %v: level %v, want %v", name, changes, learns, got, c.want)
				}
			}
		}
	}
}

// A booking that moves no ticket under other limits leaves what the ticket's call settles later.
func TestBook_RefusedMoveChangesNoSettle(t *testing.T) {
	calls, tokens := Limit{Capacity: 10, LeakRate: 1e-6}, Limit{Capacity: 10, LeakRate: 1e-6, Unit: 1}
	for _, tried := range []bool{false, true} {
		b := Must(NewSharedBucket(store.NewMemory(), "k", calls))
		k := book(t, b, BookRequest{Costs: []Cost{{1, 4}}, Wait: time.Hour})
		ticket := k.Tickets[0]
		must(t, b.SetLimits(ctx, calls, tokens))
		if tried {
			move := book(t, b, BookRequest{Move: ticket, Costs: []Cost{{1, 4}}, Wait: time.Hour})
			fatalIf(t, len(move.Tickets) > 0, "moved under limits that do not know of it")
		}
		p := ticket.Permit()
		p.Settle(Cost{1, 5})
		if got := level(t, b, 1); math.Abs(got-1) > 1e-3 { // what is beyond the cost
			t.Errorf("tried %v: level %v, want 1", tried, got)
		}
	}
}

// A booking under other limits undoes nothing that was booked.
func TestBook_UnderOtherLimits(t *testing.T) {
	inBoth(t, "Under other limits no ticket moves: its next reservation could be a later one", func(t *testing.T, b *Bucket) {
		admit(t, b, 1)
		k := book(t, b, BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
		must(t, b.SetLimits(ctx, Limit{Capacity: 1, LeakRate: 0.01}))
		move := BookRequest{Move: k.Tickets[0], Costs: []Cost{{1}}, Wait: time.Hour, Clock: k.Clock}
		if must(t, b.Book(ctx, &move)); len(move.Tickets) != 0 {
			t.Errorf("moved to %v", move.Clock.Due(move.Tickets[0]))
		}
		equal(t, time.Until(move.Clock.Due(k.Tickets[0])), 500*time.Millisecond, "the time until it is due")
		errorIf(t, !move.Clock.Holds(k.Tickets[0]), "a reservation of the next second is void")
	}, Limit{Capacity: 1, LeakRate: 2})
	inBoth(t, "A move to a cost that is too large leaves the reservation", func(t *testing.T, b *Bucket) {
		admit(t, b, 5)
		k := book(t, b, BookRequest{Costs: []Cost{{5}}, Wait: time.Minute})
		must(t, b.SetLimits(ctx, Limit{Capacity: 3, LeakRate: 10}))
		move := BookRequest{Move: k.Tickets[0], Costs: []Cost{{5}}, Wait: time.Minute}
		err := b.Book(ctx, &move)
		fatalIf(t, !errors.Is(err, ErrTooLarge), "%v", err)
		equal(t, level(t, b, 0), 10, "level after the try")
		must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets[:1]}))
		equal(t, level(t, b, 0), 5, "level after it was returned")
	}, Limit{Capacity: 5, LeakRate: 10})
	inBoth(t, "The first call of a booking gets what it would get alone", func(t *testing.T, b *Bucket) {
		admit(t, b, 2)
		errorIs(t, b.Book(ctx, &BookRequest{Costs: []Cost{{1}, {5}}}), ErrThrottled, "full")
		k := book(t, b, BookRequest{Costs: []Cost{{1}, {5}}, Wait: time.Hour, Horizon: time.Hour})
		errorIf(t, len(k.Tickets) != 1, "%d tickets", len(k.Tickets))
		k = BookRequest{Costs: []Cost{{5}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		errorIs(t, b.Book(ctx, &k), ErrTooLarge, "too large")
	}, Limit{Capacity: 2, LeakRate: 1e-3})
}

// A change of limits costs no memory and no consistency.
func TestSetLimits_Faults(t *testing.T) {
	inBoth(t, "Changes of the limits leave no memory in use", func(t *testing.T, b *Bucket) {
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		const changes = 20_000
		for i := range changes {
			must(t, b.SetLimits(ctx, Limit{Capacity: 2 + float64(i%2), LeakRate: 1}))
		}
		grown := heap() - before
		errorIf(t, grown > changes*50, "%d bytes are kept of %d changes", grown, changes)
		runtime.KeepAlive(b)
	}, Limit{Capacity: 1, LeakRate: 1})
	t.Run("Of two limits without a window, names say which one stays", func(t *testing.T) {
		limits := []Limit{{Capacity: 10, LeakRate: 1}, {Capacity: 20, LeakRate: 0.5}}
		_, err := NewBucket("k", limits...)
		errorIf(t, !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "different names"), "%v", err)
		limits[1].Name = "slow"
		limits = append(limits, Limit{Capacity: 20, LeakRate: 0.5, Unit: 1})
		must(t, errOf(NewBucket("k", limits...)))
	})
	t.Run("A call whose limits change before each of its requests fails after nine of them", func(t *testing.T) {
		var s FakeStore
		limit, n, stay := Limit{Capacity: 10, LeakRate: 1}, 0, false
		other := Must(NewSharedBucket(&s, "k", limit))
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			if !stay {
				n++
				must(t, other.SetLimits(ctx, limit.Of(0, fmt.Sprint(n))))
			}
			return s.Apply(key, op)
		}), "k", limit))
		_, err := b.Acquire(ctx, Cost{1})
		_, failed := errors.AsType[*StoreError](err)
		errorIf(t, !failed || !strings.Contains(err.Error(), "change faster") || n != 9, "%v after %d requests", err, n)
		stay = true
		admit(t, b, 1)
	})
	t.Run("States are those of all limits at one time", func(t *testing.T) {
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
			all := states(t, b)
			fatalIf(t, len(all) != 1 && len(all) != 4, "%d states", len(all))
		}
		wg.Wait()
	})
}

// A limit has the name that its user gave, also if it reads like another limit, and never that of another one.
func TestSetLimits_NamesAreThoseGiven(t *testing.T) {
	for _, c := range []struct{ limits, set []Limit }{
		{[]Limit{PerSecond(10).Of(0, "10 per 1s")}, []Limit{PerSecond(20).Of(0, "20 per 1s")}},
		{[]Limit{PerSecond(10), PerHour(100)}, []Limit{PerSecond(10), PerHour(9).Of(0, "100 per 1h")}},
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			for range 2 {
				must(t, b.SetLimits(ctx, c.set...))
				for i, s := range states(t, b) {
					n, _ := s.Limit.Each()
					want, _ := c.set[i].Each()
					errorIf(t, s.Limit.Name != c.set[i].Name || n != want, "the limit is %v, want %v", s.Limit, c.set[i])
				}
			}
		}, c.limits...)
	}
	b := Must(NewSharedBucket(store.NewMemory(), "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1).Of(0, "slots")))
	must(t, b.SetLimits(ctx, Limit{Capacity: 20, LeakRate: 1}))
	admit(t, b, 1)
	full := refused(t, b, Cost{1})
	errorIf(t, full.Limit != "slots" || full.InProgress != 1, "%v", full)
}

// Invalid limits in a store are the store's error.
func TestSetLimits_InvalidOnesInAStoreAreAStoreError(t *testing.T) {
	for name, limits := range map[string][]store.Limit{
		"one name twice": {{Capacity: 1, Rate: 1}, {Capacity: 1, Rate: 1}},
		"no UTF-8":       {{Capacity: 1, Rate: 1, Name: "\xff"}},
		"no capacity":    {{Rate: 1}},
		"no end":         {{Capacity: math.Inf(1), Rate: 1}},
		"no number":      {{Capacity: math.NaN(), Rate: 1}},
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
		lies := StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) {
			return store.Reply{Stale: true, Number: 5, Limits: limits}, nil
		})
		for _, own := range []Limit{{Capacity: 10, LeakRate: 1}, InFlight(1)} { // the slots have a key of their own
			_, err := Must(NewSharedBucket(lies, "k", own)).Acquire(ctx, Cost{1})
			_, failed := errors.AsType[*StoreError](err)
			errorIf(t, !failed || !errors.Is(err, ErrInvalid), "%s, %v: %v", name, own, err)
		}
	}
}

// A window that is made shorter frees nothing: the calls of its last 400 ms count in the shorter one.
func TestSetLimits_ShorterWindowForgetsNoCall(t *testing.T) {
	for _, window := range []func(float64, time.Duration) Limit{Window, FixedWindow} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			admit(t, b, 1)
			time.Sleep(5 * time.Second)
			admit(t, b, 99)
			must(t, b.SetLimits(ctx, window(10, 400*time.Millisecond)))
			full := refused(t, b, Cost{1})
			errorIf(t, full.RetryAfter != 410*time.Millisecond, "after 99 calls another one: %v", full)
			time.Sleep(410 * time.Millisecond)
			admit(t, b, 10)
		}, window(100, 6*time.Second))
	}
}

// A limit that is set again after another one returns no units of calls that it did not count.
func TestSetLimits_ReturningLimitReturnsNoOldUnits(t *testing.T) {
	first, second := Limit{Capacity: 10, LeakRate: 1, Name: "first"}, Limit{Capacity: 10, LeakRate: 1, Name: "second"}
	bothWays(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 10)
		time.Sleep(time.Second)
		must(t, b.SetLimits(ctx, second))
		must(t, b.SetLimits(ctx, first))
		admit(t, b, 3)
		p.Settle(Cost{})
		equal(t, level(t, b, 0), 3, "level")
	}, first)
}

// A limit without a name keeps its level when its number changes, and when other limits come or go. Else as many calls
// would leave once more.
func TestSetLimits_LimitWithoutNameKeepsItsLevel(t *testing.T) {
	many, window, day := Limit{Capacity: 1000, LeakRate: 1000}, Window(100, time.Hour), Daily(100, time.UTC)
	hundred := Limit{Capacity: 100, LeakRate: 1e-6, Unit: 1}
	hour, fast, named := Limit{Capacity: 100, LeakRate: 1. / 36}, PerSecond(1000).Burst(100), PerMinute(900).Burst(100).Of(0, "minute")
	burst := PerHour(1000).Burst(100)
	for name, sets := range map[string][][]Limit{
		"a second comes":          {{hour}, {hour, fast}},
		"a second before it":      {{hour}, {fast, hour}},
		"a burst":                 {{burst}, {burst, fast}},
		"it comes and goes":       {{hour}, {hour, fast}, {hour}},
		"it goes":                 {{hour, fast}, {hour}},
		"it goes and comes":       {{fast, hour}, {hour}, {hour, fast}},
		"it is set, and one goes": {{hour}, {hour, fast}, {fast, hour}, {hour}},
		"a named one comes":       {{hour}, {hour, named}, {hour, named, fast}},
		"another unit":            {{fast, hour}, {Limit{Capacity: 100, LeakRate: 1. / 36, Unit: 1}, hour}},
		"a day comes and goes":    {{window}, {window, Daily(990, time.UTC)}, {window}},
		"an hour goes and comes":  {{fast, Hourly(100)}, {Hourly(100)}, {Hourly(100), fast}},
		"a window":                {{many, window}, {many, Window(50, time.Hour)}, {many, Window(25, time.Hour)}, {many, window}},
		"set again":               {{many, window}, {many, Window(50, time.Hour)}, {many, Window(50, time.Hour)}},
		"another goes":            {{many, window}, {Window(50, time.Hour)}, {many, Window(40, time.Hour)}, {window}},
		"another comes":           {{window}, {Window(50, time.Hour), many}, {many, Window(40, time.Hour)}},
		"two kinds":               {{PerHour(1e9).Burst(200), window}, {Window(50, time.Hour), PerHour(2e9).Burst(300)}},
		"two windows":             {{window, Window(10_000, 25*time.Hour)}, {Window(9_000, 25*time.Hour), Window(50, time.Hour)}},
		"a day":                   {{many, day}, {many, Daily(50, time.UTC)}, {Daily(40, time.UTC)}, {day, many}},
		"a day, and another's":    {{Daily(1000, zone("America/New_York")), day}, {Daily(900, zone("America/New_York")), Daily(50, time.UTC)}},
		"a literal":               {{PerSecond(1000).Burst(1000), {Capacity: 100, LeakRate: 1e-6}}, {PerSecond(1000).Burst(1000), {Capacity: 50, LeakRate: 2e-6}}, {{Capacity: 90, LeakRate: 1e-6}}},
		"a literal of other unit": {{many, hundred, Window(1e6, time.Hour).Of(1, "")}, {Window(2e6, time.Hour).Of(1, ""), {Capacity: 50, LeakRate: 2e-6, Unit: 1}, many}},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, b *Bucket) {
				time.Sleep(12*time.Hour + time.Minute) // no call leaves in the first second of an hour
				admit(t, b, 100, 100)
				time.Sleep(2 * time.Second)
				for _, limits := range sets[1:] {
					must(t, b.SetLimits(ctx, limits...))
					refused(t, b, Cost{1, 1})
				}
			}, sets[0]...)
		})
	}
}

func limitsText(b *Bucket) string {
	s := ""
	for _, l := range b.Limits() {
		s += l.String() + ";"
	}
	return s
}

// startNow returns the bucket of a process that starts now, a minute after the last one.
func startNow(kept store.Store, limits ...Limit) *Bucket {
	time.Sleep(time.Minute)
	started := time.Now() // the process, and with it the bucket
	return Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		op.Age = time.Since(started)
		return kept.Update(ctx, key, op)
	}), "api", limits...))
}

// of returns a limit with a version.
func of(version int, l Limit) Limit {
	l.Version = version
	return l
}

// The limits of the newest release count for all processes.
func TestBucket_Releases(t *testing.T) {
	// Limits that an operator has set hold through restarts of the program, and until its own limits change.
	bubble(t, "The limits of the newest release count for all processes", func(t *testing.T) {
		memory, changes := store.NewMemory(), new(atomic.Int64)
		kept := StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			r, err := memory.Update(ctx, key, op)
			if op.Action == store.Replace && !r.Stale && err == nil {
				changes.Add(1)
			}
			return r, err
		})
		admit := func(b *Bucket, want string) {
			t.Helper()
			p := admit(t, b, 1, 1)
			p.Done()
			time.Sleep(time.Second)
			got := limitsText(b)
			errorIf(t, got != want, "by %s, want %s", got, want)
		}
		ten, five, window := PerSecond(10), PerSecond(5), Window(100, time.Minute).Of(1, "")
		old := startNow(kept, ten)
		admit(old, "10 per 1s;")
		heard := make(chan Event, 10)
		defer old.Observe(func(e Event) { heard <- e })()
		admit(old, "10 per 1s;")
		young := startNow(kept, five, window)
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(old, "5 per 1s;(unit 1): 100 in any 1m;")
		admit(young, "5 per 1s;(unit 1): 100 in any 1m;")
		synctest.Wait()
		if n, e := len(heard), <-heard; n != 1 || e.Kind != EventLimits || e.Before != "10 per 1s" || e.Limits == e.Before {
			t.Errorf("heard %d changes, the first is %+v", n, e)
		}
		equal(t, changes.Load(), 1, "changes of two releases")
		must(t, young.SetLimits(ctx, PerSecond(7), window))
		again := startNow(kept, five, window)
		admit(again, "7 per 1s;(unit 1): 100 in any 1m;") // the same program, restarted
		next := startNow(kept, ten)
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
		must(t, next.SetLimits(ctx, five))
		admit(again, "5 per 1s;")
		must(t, next.SetLimits(ctx))
		admit(next, "10 per 1s;")
		admit(again, "10 per 1s;")
	})
	// A replica of the old one that restarts changes nothing: 80 calls leave in 20 s, and not 199. Neither
	// does an operator's change take the version away, nor a day without a call.
	bubble(t, "A vendor lowers its limit from 10 to 4 a second, and so does the new release", func(t *testing.T) {
		kept := store.NewMemory()
		starts := func(n float64, version int) *Bucket { return startNow(kept, of(version, PerSecond(n))) }
		admits := func(want int, by string, all ...*Bucket) {
			t.Helper()
			n := 0
			for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
				for _, b := range all {
					if _, err := b.Acquire(ctx, Cost{1}); err == nil {
						n++
					}
				}
			}
			for _, b := range all {
				got := limitsText(b)
				errorIf(t, n != want || got != by, "%d calls in 20 s by %s, want %d by %s", n, got, want, by)
			}
		}
		old := starts(10, 1)
		admits(199, "10 per 1s, version 1;", old)
		young := starts(4, 2)
		admits(80, "4 per 1s, version 2;", young, old)
		restarted := starts(10, 1)
		admits(80, "4 per 1s, version 2;", restarted, young)
		unversioned := starts(10, 0)
		admits(80, "4 per 1s, version 2;", unversioned, restarted, young)
		must(t, young.SetLimits(ctx, PerSecond(2)))
		time.Sleep(24 * time.Hour)
		admits(40, "2 per 1s, version 2;", starts(10, 1), young)
		if err := restarted.SetLimits(ctx); err != nil { // its own are of a lower version
			t.Fatal(err)
		}
		admits(40, "2 per 1s, version 2;", restarted, young)
		admits(60, "3 per 1s, version 3;", starts(3, 3), restarted, young)
	})
	bubble(t, "Calls in flight have a version, too", func(t *testing.T) {
		kept := store.NewMemory()
		for i, c := range []struct{ n, version, want int }{{50, 1, 50}, {5, 2, 5}, {50, 1, 5}, {40, 0, 5}, {7, 3, 7}} {
			b := startNow(kept, of(c.version, InFlight(c.n)), PerSecond(100))
			p := admit(t, b, 1)
			p.Done()
			time.Sleep(time.Second)
			all := b.Limits()
			errorIf(t, int(all[1].Capacity) != c.want, "start %d: %v, want %d in flight", i, all, c.want)
		}
	})
}

// A pause stops calls, and changes no limit: nothing is filled, and calls leave afterwards as if
// none had come meanwhile.
func TestBucket_PauseFillsNothing(t *testing.T) {
	limits := []Limit{{Capacity: 1000, LeakRate: 1000}, Monthly(1000, time.UTC), PerHour(1000).Burst(500).Of(0, "hour")}
	bothWays(t, func(t *testing.T, b *Bucket) {
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		must(t, b.Pause(ctx, time.Second))
		var full *ThrottledError
		_, err := b.Acquire(ctx, Cost{1})
		errorIf(t, !errors.As(err, &full) || !full.Held || full.RetryAfter != time.Second, "paused: %v", err)
		time.Sleep(time.Second)
		errorIs(t, errOf(b.Acquire(ctx, Cost{500})), nil, "after the pause")
		must(t, errors.Join(b.Pause(ctx, time.Hour), b.Resume(ctx)))
		s, err := b.State(ctx)
		errorIf(t, err != nil || s.HeldFor != 0 || s.Level > 500, "resumed: %+v, %v", s, err)
		errorIs(t, b.Pause(ctx, 0), ErrInvalid, "a pause of 0")
	}, limits...)
}
