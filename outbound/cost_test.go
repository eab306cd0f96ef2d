package outbound

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A cost that is above the capacity by rounding, as ten tenths may be above one, takes all of it.
func TestCost_AboveCapacityByRoundingTakesAll(t *testing.T) {
	const capacity = 0.7
	two := math.Nextafter(math.Nextafter(capacity, 1), 1)
	limit := Limit{Capacity: capacity, LeakRate: 1}
	for name, limits := range map[string][]Limit{
		"one limit": {limit}, "two limits": {limit, {Capacity: 100, LeakRate: 100, Name: "wide"}}, "in flight": {limit, InFlight(9)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, b *Bucket) {
				for _, n := range []float64{two, capacity * (1 + 0.49e-9)} {
					ok, err := b.AbleToAccept(ctx, Cost{n})
					errorIf(t, !ok || err != nil, "%v of %v: able to accept %v, %v", n, capacity, ok, err)
					p := admit(t, b, n)
					equal(t, level(t, b, 0), capacity, "%v: level", n)
					p.Settle(Cost{n})
					p.Done()
					equal(t, level(t, b, 0), capacity, "settled to what it was: level")
					full := refused(t, b, Cost{n})
					errorIf(t, full.RetryAfter != 700*time.Millisecond, "a second one: %v, want 700ms", full)
					time.Sleep(700 * time.Millisecond)
					k := BookRequest{Costs: []Cost{{n}}}
					errorIs(t, b.Book(ctx, &k), nil, "booked")
					_, _, err = k.Clock.Earliest(&Cost{n}, new(Cost))
					errorIf(t, err != nil, "the clock says: %v", err)
					time.Sleep(time.Second)
				}
				for _, n := range []float64{capacity * (1 + 0.51e-9), 0.8} {
					_, err := b.Acquire(ctx, Cost{n})
					errorIf(t, !errors.Is(err, ErrTooLarge), "%v of %v: %v, want too large", n, capacity, err)
					ok, err := b.AbleToAccept(ctx, Cost{n})
					errorIf(t, ok || !errors.Is(err, ErrTooLarge), "%v of %v: able to accept %v, %v", n, capacity, ok, err)
				}
			}, limits...)
		})
	}
}

// A free call takes no unit, and else is a call.
func TestCostFree(t *testing.T) {
	bubble(t, "A free call, as a health check, leaves immediately unless the bucket is on hold", func(t *testing.T) {
		l := Limit{Capacity: 10, LeakRate: 1}
		for name, b := range map[string]*Bucket{
			"fast": Must(NewBucket("fast", l)), "two": Must(NewBucket("two", l, Limit{Capacity: 10, LeakRate: 1, Unit: 1})),
			"shared": Must(NewSharedBucket(store.NewMemory(), "shared", l)),
		} {
			admit(t, b, 10)
			k := book(t, b, BookRequest{Costs: []Cost{{10}}, Wait: time.Hour})
			p, err := b.Acquire(ctx, Cost{Free})
			able, err2 := b.AbleToAccept(ctx, Cost{Free})
			fatalIf(t, err != nil || err2 != nil || !able,
				"%s: full, and booked for later: %v, %v, %v", name, err, able, err2)
			equal(t, level(t, b, 0), 20, "%s: level", name)
			p.Settle(Cost{3})
			equal(t, level(t, b, 0), 23, "%s: level after it has cost 3", name)
			if q := (BookRequest{Costs: []Cost{{Free}}, Wait: time.Hour}); b.Book(ctx, &q) != nil || len(q.Tickets) != 1 || q.Clock.Due(q.Tickets[0]).Before(k.Clock.Due(k.Tickets[0])) {
				t.Errorf("%s: booked, it leaves before those that were booked earlier: %v", name, q.Tickets)
			}
			p.Refused(time.Minute)
			full := refused(t, b, Cost{Free})
			errorIf(t, !full.Held || full.RetryAfter != time.Minute, "%s: held: %v", name, full)
			able, err = b.AbleToAccept(ctx, Cost{Free})
			errorIf(t, able || err != nil, "%s: held: %v, %v", name, able, err)
		}
	})
	bubble(t, "A free call counts in flight, and leaves slots to calls that are booked", func(t *testing.T) {
		l := Limit{Capacity: 1, LeakRate: 1}
		for name, of := range map[string]func(slots Limit) *Bucket{
			"in memory": func(slots Limit) *Bucket { return Must(NewBucket("k", l, slots)) },
			"shared":    func(slots Limit) *Bucket { return Must(NewSharedBucket(store.NewMemory(), "k", l, slots)) },
		} {
			try := func(b *Bucket, what string, wait time.Duration, progress int) (p Permit) {
				able, err := b.AbleToAccept(ctx, Cost{Free})
				want := wait == 0 && progress == 0
				errorIf(t, able != want || err != nil, "%s, %s: able %v, %v; want %v", name, what, able, err, want)
				p, err = b.Acquire(ctx, Cost{Free})
				var full *ThrottledError
				switch {
				case wait == 0 && progress == 0:
					must(t, err)
				case !errors.As(err, &full) || full.RetryAfter != wait && !(b.Shared() && progress > 0) || full.InProgress != progress:
					t.Errorf("%s, %s: %v, want %v and %d in progress", name, what, err, wait, progress)
				}
				return p
			}
			b := of(InFlight(1))
			p := try(b, "new", 0, 0)
			try(b, "no place", 0, 1)
			p.Done()
			p = try(b, "a place", 0, 0)
			p.Done()
			b = of(InFlight(9))
			admit(t, b, 1)
			try(b, "full", 0, 0)
			book(t, b, BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
			try(b, "booked", time.Second, 0)
			time.Sleep(time.Second)
			try(b, "due", 0, 0)
			b = of(InFlight(2))
			must(t, b.Hold(ctx, time.Minute))
			try(b, "held", time.Minute, 0)
		}
	})
	bubble(t, "A free call of a small bucket allocates nothing for it, and its success counts", func(t *testing.T) {
		for _, succeeds := range []bool{true, false} {
			b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
			p := admit(t, b, Free)
			if succeeds {
				p.Done()
			}
			p.Failed()
			errorIf(t, b.core.Slow(), "succeeds %v: it has a slowPath", succeeds)
			p = admit(t, b, 1)
			p.Refused(time.Second)
			s := states(t, b)[0]
			errorIf(t, (s.Speed < 1) != succeeds, "succeeds %v: speed %v after a refusal", succeeds, s.Speed)
		}
	})
}

// A cost without the first unit is an error that says so. A cost that is Free there takes only the other units.
func TestCost_WithoutTheFirstUnitIsInvalidUnlessFree(t *testing.T) {
	const calls, tokens, output = 0, 1, 2
	synctest.Test(t, func(t *testing.T) {
		limits := []Limit{PerMinute(1e6).Burst(1e6).Of(tokens, "tokens"), PerMinute(10).Burst(10)}
		for name, b := range map[string]*Bucket{
			"in memory": Must(NewBucket("llm", limits...)),
			"in flight": Must(NewBucket("llm", append(limits, InFlight(100))...)),
			"shared":    Must(NewSharedBucket(store.NewMemory(), "llm", limits...)),
		} {
			for _, c := range []Cost{{}, {tokens: 100}, {output: 1}, {tokens: Free}} {
				_, err := b.Acquire(ctx, c)
				able, ableErr := b.AbleToAccept(ctx, c)
				booked := b.Book(ctx, &BookRequest{Costs: []Cost{c}})
				e, _ := b.Explain(ctx, c)
				for _, err := range []error{err, ableErr, booked, e.Err} {
					var bad *CostError
					if !errors.As(err, &bad) || bad.Err != ErrInvalid || bad.Cost != c || !strings.Contains(err.Error(), `for "llm" lacks number 0 (limit "10 per 1m")`) {
						t.Errorf("%s, %v: %v", name, c, err)
					}
				}
				errorIf(t, able, "%s, %v: able", name, c)
			}
			for range 12 { // two more than the calls of a minute
				for _, c := range []Cost{{calls: Free, tokens: 100}, {Free}, {Free, Free, Free, Free}} {
					p, err := b.Acquire(ctx, c)
					if able, err := b.AbleToAccept(ctx, c); !able || err != nil {
						t.Errorf("%s, %v: able %v, %v", name, c, able, err)
					}
					if e, err := b.Explain(ctx, c); err != nil || e.Because != "" {
						t.Errorf("%s, %v: %v, %v", name, c, e, err)
					}
					fatalIf(t, err != nil, "%s, %v: %v", name, c, err)
					p.Settle(Cost{Free, c[tokens] / 2})
					p.Done()
				}
			}
			equal(t, levels(t, b), [2]float64{600, 0}, "%s: levels", name)
			p, err := b.Acquire(ctx, Cost{1})
			errorIf(t, err != nil, "%s: tokens that are known afterwards: %v", name, err)
			p.Settle(Cost{Free, 50})
			equal(t, levels(t, b), [2]float64{650, 0}, "%s: levels", name)
		}
		one := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1}))
		for range 3 {
			admit(t, one, Free)
		}
		p, err := one.Acquire(ctx, Cost{1})
		if _, err := one.Acquire(ctx, Cost{}); err == nil || !strings.Contains(err.Error(), `lacks number 0`) {
			t.Errorf("nothing: %v", err)
		}
		if p.Settle(Cost{Free}); err != nil || states(t, one)[0].Level != 0 {
			t.Errorf("settled to Free: level %v, %v", states(t, one)[0].Level, err)
		}
		time.Sleep(time.Second)
		slots := Must(NewBucket("k", InFlight(1)))
		for _, c := range []Cost{{}, {output: 3}, {Free}} {
			p := admit(t, slots, c[:]...)
			p.Done()
		}
	})
}

// A bucket of one limit counts the unit of that limit alone, whichever it is.
func TestCost_OneLimitCountsItsUnit(t *testing.T) {
	for unit := range 4 {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 0.001, Unit: unit}))
		c := Cost{3, 3, 3, 3}
		c[unit] = 7
		_, err := b.Acquire(ctx, c)
		must(t, err)
		n := level(t, b, 0)
		errorIf(t, n < 6.9 || n > 7, "unit %d: level %g, want 7", unit, n)
		refused(t, b, Cost{4, 4, 4, 4})
	}
}
