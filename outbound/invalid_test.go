package outbound

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	nan      = math.NaN()
	inf      = math.Inf(1)
	denormal = math.SmallestNonzeroFloat64
	// noNumbers are never a number of units, 0 may be.
	noNumbers = []float64{nan, inf, -inf, -1, -denormal, -1e308}
	huge      = []float64{1e12 + 1, 1e300, math.MaxFloat64}
	// noSpans are never how long something is to last, 0 may be.
	noSpans = []time.Duration{-1, -time.Hour, math.MinInt64}
)

// buckets are one of each kind, all with some capacity left and some level.
func buckets(t *testing.T) map[string]*Bucket {
	all := map[string]*Bucket{
		"fast":    Must(NewBucket("fast", Limit{Capacity: 10, LeakRate: 1})),
		"rounded": Must(NewBucket("rounded", Limit{Capacity: 10, LeakRate: 3e8})),
		"several": Must(NewBucket("several", Limit{Capacity: 10, LeakRate: 1}, Limit{Capacity: 20, LeakRate: 3, Unit: 1}, InFlight(5))),
		"shared":  Must(NewSharedBucket(store.NewMemory(), "shared", Limit{Capacity: 10, LeakRate: 1}, Limit{Capacity: 10, LeakRate: 1, Unit: 3})),
		"held":    Must(NewBucket("held", Limit{Capacity: 10, LeakRate: 1})),
		"window":  Must(NewBucket("window", Window(10, 10*time.Second))),
		"day":     Must(NewSharedBucket(store.NewMemory(), "day", Daily(10, time.UTC), FixedWindow(10, 10*time.Second), Window(10, time.Second).Of(1, ""))),
	}
	time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(store.Slack))) // no call leaves in a day's first second
	for name, b := range all {
		_, err := b.Acquire(ctx, Cost{2, 1})
		fatalIf(t, err != nil, "%s: %v", name, err)
	}
	must(t, all["held"].Hold(ctx, time.Minute))
	return all
}

// refuses checks that something invalid is the error want and leaves each kind of bucket as it was.
func refuses(t *testing.T, what string, want error, do func(b *Bucket) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		for name, b := range buckets(t) {
			before := states(t, b)
			err := do(b)
			errorIf(t, !errors.Is(err, want), "%s of the bucket %s: %v, want %v", what, name, err, want)
			if after := states(t, b); !reflect.DeepEqual(before, after) {
				t.Errorf("%s of the bucket %s has changed\n%+v to\n%+v", what, name, before, after)
			}
		}
	})
}

// Each method refuses a cost that is no number of units or too large, and changes nothing.
func TestBucket_InvalidCostChangesNothing(t *testing.T) {
	for name, do := range map[string]func(b *Bucket, c Cost) error{
		"Acquire": func(b *Bucket, c Cost) error { _, err := b.Acquire(ctx, c); return err },
		"Fillup":  func(b *Bucket, c Cost) error { _, err := b.Fillup(ctx, c); return err },
		"AbleToAccept": func(b *Bucket, c Cost) error {
			ok, err := b.AbleToAccept(ctx, c)
			errorIf(t, ok, "AbleToAccept(%v)", c)
			return err
		},
		"Book": func(b *Bucket, c Cost) error {
			k := BookRequest{Costs: []Cost{c}, Wait: time.Hour}
			err := b.Book(ctx, &k)
			errorIf(t, len(k.Tickets) > 0, "Book(%v): a ticket", c)
			return err
		},
		"Clock.Earliest": func(b *Bucket, c Cost) error {
			k := clockOf(t, b)
			errorIf(t, k.Surely(&c, new(Cost), 0, true, time.Now().Add(100*time.Hour)), "Surely(%v)", c)
			_, _, err := k.Earliest(&c, new(Cost))
			return err
		},
	} {
		for _, n := range noNumbers {
			for unit := range units {
				c := Cost{1}
				c[unit] = n
				refuses(t, fmt.Sprintf("%s(%v)", name, c), ErrInvalid, func(b *Bucket) error { return do(b, c) })
			}
		}
		if name == "Fillup" { // which takes any finite cost
			continue
		}
		for _, n := range append([]float64{10.000001, 11}, huge...) {
			refuses(t, fmt.Sprintf("%s(%v)", name, n), ErrTooLarge, func(b *Bucket) error { return do(b, Cost{n}) })
		}
	}
}

// Numbers at the edge, and any keys, do no harm.
func TestBucket_OddNumbersAndKeys(t *testing.T) {
	bubble(t, "A cost that is too small for a float to add still counts, as a billionth of the capacity", func(t *testing.T) {
		for _, b := range []*Bucket{Must(NewBucket("fast", Limit{Capacity: 1e9, LeakRate: 1})), Must(NewBucket("two", Limit{Capacity: 1e9, LeakRate: 1}, Limit{Capacity: 1e9, LeakRate: 1, Unit: 1}))} {
			admit(t, b, denormal)
			n := level(t, b, 0)
			errorIf(t, math.Abs(n-1) > 1e-6, "level %v, want 1", n)
		}
	})
	bubble(t, "Fillup takes any finite cost, and its state is never above the capacity", func(t *testing.T) {
		for name, b := range buckets(t) {
			for _, n := range append([]float64{0, denormal, 10}, huge...) {
				if s, err := b.Fillup(ctx, Cost{n, n, n, n}); err != nil || !(s.Level <= s.Limit.Capacity+1e-5) {
					t.Errorf("Fillup(%v) of the bucket %s: %+v, %v", n, name, s, err)
				}
			}
			states(t, b)
		}
	})
	bubble(t, "A permit ignores invalid numbers and durations", func(t *testing.T) {
		for name, b := range buckets(t) {
			if name == "held" {
				continue
			}
			p := admit(t, b, 1, 1)
			before := states(t, b)
			for _, n := range append(append([]float64{}, noNumbers...), huge...) {
				p.Settle(Cost{n})
				p.Settle(Cost{1, n})
			}
			for _, d := range append([]time.Duration{0}, noSpans...) {
				p.Hold(d)
			}
			after := states(t, b)
			errorIf(t, !reflect.DeepEqual(before, after), "the bucket %s has changed\n%+v to\n%+v", name, before, after)
			p.Settle(Cost{2, 1}) // none of those was the first Settle
			equal(t, level(t, b, 0), before[0].Level+1, "%s: level", name)
			p.Refused(math.MinInt64)
			s := states(t, b)[0]
			errorIf(t, s.HeldFor != time.Second, "%s: refused without a duration, held for %v, want 1 s", name, s.HeldFor)
		}
	})
	bubble(t, "The longest durations overflow nothing", func(t *testing.T) {
		for name, b := range buckets(t) {
			p, _ := b.Acquire(ctx, Cost{1, 1})
			for range 3 {
				must(t, b.Hold(ctx, math.MaxInt64))
				p.Refused(math.MaxInt64)
				p.Hold(math.MaxInt64)
				time.Sleep(time.Hour)
				full := refused(t, b, Cost{1})
				errorIf(t, full.RetryAfter < 100*365*24*time.Hour, "%s, held for ever: %v", name, full)
				err := b.Book(ctx, &BookRequest{Costs: []Cost{{1}, {1}}, Wait: time.Hour, Horizon: math.MaxInt64})
				errorIf(t, !errors.Is(err, ErrThrottled), "%s, held for ever: %v", name, err)
				states(t, b)
			}
			must(t, b.Resume(ctx))
			for _, s := range states(t, b) {
				errorIf(t, s.HeldFor > 0 || s.Level > s.Limit.Capacity, "%s, resumed: %+v", name, s)
			}
			k := BookRequest{Costs: make([]Cost, 30), Wait: math.MaxInt64, Horizon: math.MaxInt64}
			for i := range k.Costs {
				k.Costs[i] = Cost{10, 1}
			}
			if err := b.Book(ctx, &k); err != nil && name != "several" && name != "day" { // nothing is booked beyond a period
				t.Errorf("%s: %v", name, err)
			}
			states(t, b)
		}
	})
	bubble(t, "A Memory drops keys that equal new ones, and keeps those in use", func(t *testing.T) {
		store := store.NewMemory()
		debtor := Must(NewSharedBucket(store, "debtor", PerHour(1)))
		for i := range 200 {
			_, err := debtor.Acquire(ctx, Cost{1})
			fatalIf(t, (err == nil) != (i == 0), "call %d: %v", i, err)
			admit(t, Must(NewSharedBucket(store, fmt.Sprint(i), PerSecond(1))), 1)
		}
		time.Sleep(2 * time.Hour)
		for i := range 200 {
			admit(t, Must(NewSharedBucket(store, fmt.Sprint("new ", i), PerSecond(1))), 1)
		}
		n := store.Len()
		errorIf(t, n > 250, "%d keys are kept, 200 of them in use", n)
	})
	bubble(t, "Any string is a key, and errors show little of it", func(t *testing.T) {
		store, limit := store.NewMemory(), Limit{Capacity: 1, LeakRate: 1}
		for _, key := range []string{"", "\x00", "a\x00b", "\xff\xfe\xc0", "*?[]{}", "a\nb", strings.Repeat("k", 10<<20)} {
			for _, b := range []*Bucket{Must(NewBucket(key, limit)), Must(NewSharedBucket(store, key, limit))} {
				admit(t, b, 1)
				if text := refused(t, b, Cost{1}).Error(); b.Key() != key || len(text) > 600 || strings.ContainsAny(text, "\x00\n") {
					t.Errorf("a key of %d bytes: %.99v", len(key), text)
				}
			}
		}
	})
}

// A negative duration, or a hold of none, is an error and changes nothing.
func TestBucket_InvalidDurationChangesNothing(t *testing.T) {
	refuses(t, "Hold(0)", ErrInvalid, func(b *Bucket) error { return b.Hold(ctx, 0) })
	for _, d := range noSpans {
		refuses(t, fmt.Sprintf("Hold(%d)", d), ErrInvalid, func(b *Bucket) error { return b.Hold(ctx, d) })
		for field, k := range map[string]BookRequest{"Wait": {Wait: d}, "Horizon": {Horizon: d}, "After": {After: d}} {
			refuses(t, fmt.Sprintf("Book, %s %d", field, d), ErrInvalid, func(b *Bucket) error {
				k.Costs = []Cost{{1}}
				return b.Book(ctx, &k)
			})
		}
	}
}

// An invalid limit is refused wherever limits are given, and changes nothing.
func TestLimit_InvalidIsRefusedEverywhere(t *testing.T) {
	good := Limit{Capacity: 1, LeakRate: 1}
	bad := map[string]Limit{"zero": {}, "unit": good.Of(-1, ""), "unit 4": good.Of(units, ""), "name": good.Of(0, "a\xff"), "literal burst": good.Burst(1),
		"in flight 0": InFlight(0), "in flight -1": InFlight(-1), "in flight min": InFlight(math.MinInt), "in flight max": InFlight(math.MaxInt),
		"lease 1s": InFlight(1).Lease(time.Second), "lease 2h": InFlight(1).Lease(2 * time.Hour), "lease of a rate": PerSecond(1).Lease(time.Minute),
		"adaptive rate": PerSecond(9).Adaptive(), "adaptive lease": InFlight(9).Lease(time.Minute).Adaptive(), "lease, adaptive": InFlight(9).Adaptive().Lease(time.Minute),
		"slow": {Capacity: 1e12, LeakRate: 1e-3}, "denormal rate": {Capacity: 1, LeakRate: denormal}, "denormal both": {Capacity: 1e-300, LeakRate: denormal},
		"denormal n": Per(denormal, time.Second), "window": Per(1, 0), "window -1": Per(1, -1), "window min": Per(1, math.MinInt64),
		"window max": Per(1, math.MaxInt64), "300 years": Per(1, 101*365*24*time.Hour)}
	for _, n := range append(append([]float64{0, math.Copysign(0, -1)}, noNumbers...), huge...) {
		bad[fmt.Sprint("capacity ", n)] = Limit{Capacity: n, LeakRate: 1}
		bad[fmt.Sprint("rate ", n)] = Limit{Capacity: 1, LeakRate: n}
		bad[fmt.Sprint("per second ", n)] = PerSecond(n * 1.02) // 10 ms more than that
		bad[fmt.Sprint("per minute burst ", n)] = PerMinute(10).Burst(n)
		if n > 1e9 {
			continue
		}
		bad[fmt.Sprint("per hour ", n)] = PerHour(n)
		bad[fmt.Sprint("per minute ", n)] = PerMinute(n)
	}
	for name, l := range bad {
		errorIs(t, errOf(NewBucket("key", l)), ErrInvalid, "NewBucket with %s, %v", name, l)
		errorIs(t, errOf(NewBucket("key", good, l)), ErrInvalid, "NewBucket with %s next to a good one", name)
		errorIs(t, errOf(NewSharedBucket(store.NewMemory(), "key", l)), ErrInvalid, "NewSharedBucket with %s", name)
		refuses(t, "SetLimits with "+name, ErrInvalid, func(b *Bucket) error { return b.SetLimits(ctx, l) })
	}
	nine := make([]Limit, spec.MaxLimits+1)
	for i := range nine {
		nine[i] = good.Of(0, fmt.Sprint(i))
	}
	for _, some := range [][]Limit{{}, nine, {good, good}, {InFlight(1).Of(0, "a"), good, InFlight(2).Of(1, "b")}} {
		_, err := NewBucket("key", some...)
		bad, ok := errors.AsType[*LimitError](err)
		errorIf(t, !ok || !errors.Is(err, ErrInvalid) || bad.Key != "key", "NewBucket with %v: %v", some, err)
	}
	errorIs(t, errOf(NewSharedBucket(nil, "key", good)), ErrInvalid, "NewSharedBucket without a store")
}

// A limit at the edge of what is valid admits its capacity and no more.
func TestLimit_ExtremesAdmitTheirCapacityOnce(t *testing.T) {
	for _, l := range []Limit{{Capacity: 0.1, LeakRate: 1e-10}, {Capacity: 1e-300, LeakRate: 1e-305}, {Capacity: 1e12, LeakRate: 1e12},
		{Capacity: 1e12, LeakRate: 320}, {Capacity: 1, LeakRate: 3.2e-10}, {Capacity: 3, LeakRate: 1e9 / 3}, {Capacity: 1, LeakRate: 1e9}, Per(1e9, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("odd", l))
			admitted := 0
			for range 20 {
				if _, err := b.Acquire(ctx, Cost{max(denormal, l.Capacity/2)}); err == nil {
					admitted++
				}
			}
			// What leaks in a nanosecond, the resolution of waits, may come on top.
			most := 2 + int(l.LeakRate*1e-9/(l.Capacity/2))
			errorIf(t, admitted > most || admitted == 0, "%v: %d halves of it admitted in one burst", l, admitted)
			states(t, b)
		})
	}
}
