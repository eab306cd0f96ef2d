package estimate

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	ctx       = context.Background()
	nan, inf  = math.NaN(), math.Inf(1)
	noNumbers = []float64{nan, inf, -inf, -1, -1e308, 1e12 + 1, 1e300, math.MaxFloat64}
)

// The estimate is the mean of the first calls, and then a moving average of what calls take beyond
// the known part.
func TestAverage_LearnsTheRest(t *testing.T) {
	known := outbound.Cost{1, 100}
	var e, quick Average
	quick.Weight = 1
	for i, c := range []struct{ used, mean, latest float64 }{{0, 100, 100}, {300, 300, 300}, {500, 400, 500}} {
		if i > 0 {
			e.Learn(known, outbound.Cost{1, c.used})
			quick.Learn(known, outbound.Cost{1, c.used})
		}
		if mean, latest := e.Cost(known), quick.Cost(known); mean != (outbound.Cost{1, c.mean}) || latest != (outbound.Cost{1, c.latest}) {
			t.Errorf("after %d calls: %v, and %v with weight 1", i, mean, latest)
		}
	}
	for range 200 {
		e.Learn(known, outbound.Cost{1, 50}) // less than the known part
	}
	if c := e.Cost(known); c[0] != 1 || c[1] < 100 || c[1] > 101 {
		t.Errorf("after many that took nothing more: %v", c)
	}
}

// Numbers that are no cost and weights that are none are ignored.
func TestAverage_IgnoresInvalidNumbers(t *testing.T) {
	for _, weight := range []float64{0, -1, 2, nan, inf, -inf, 0.5} {
		e := Average{Weight: weight}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for _, n := range noNumbers {
					e.Learn(outbound.Cost{n}, outbound.Cost{1})
					e.Learn(outbound.Cost{1}, outbound.Cost{1, n})
				}
				for range 100 {
					e.Learn(outbound.Cost{1, 10}, outbound.Cost{1, 30})
				}
			})
		}
		wg.Wait()
		if c := e.Cost(outbound.Cost{1, 10}); !(math.Abs(c[0]-1) < 1e-9 && math.Abs(c[1]-30) < 1e-9) {
			t.Errorf("weight %v: %v, want 1 and 30", weight, c)
		}
	}
	for _, n := range noNumbers {
		if c := (&Average{First: outbound.Cost{n}}).Cost(outbound.Cost{1}); c != (outbound.Cost{1}) {
			t.Errorf("first %v: %v", n, c)
		}
	}
}

// Calls that cost more than the bucket holds are admitted with an estimate of its capacity, also of
// limits that are set later, and settle the rest. A known part above the capacity stays.
func TestAverage_NeverExceedsTheCapacity(t *testing.T) {
	const calls, tokens = 0, 1
	perMinute, perSecond := outbound.Limit{Capacity: 800, LeakRate: 500, Unit: tokens}, outbound.Limit{Capacity: 40, LeakRate: 20}
	for name, limits := range map[string][]outbound.Limit{"one": {perMinute}, "two": {perSecond, perMinute}, "shared": {perSecond, perMinute}} {
		synctest.Test(t, func(t *testing.T) {
			b, known := outbound.Must(outbound.NewBucket(name, limits...)), outbound.Cost{}
			if name == "shared" {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), name, limits...))
			}
			known[calls] = float64(len(limits) - 1)
			with := func(n float64) outbound.Cost { c := known; c[tokens] = n; return c }
			e := Average{Bucket: b, First: outbound.Cost{tokens: 300}}
			call := func(known, want, used outbound.Cost) {
				t.Helper()
				time.Sleep(time.Hour)
				c := e.Cost(known)
				p, err := b.Acquire(ctx, c)
				if c != want || err != nil {
					t.Fatalf("%s: cost %v, want %v: %v", name, c, want, err)
				}
				p.Settle(used)
				p.Done()
				e.Learn(known, used)
			}
			call(known, with(300), with(900))
			call(known, with(800), with(1200))
			if s, err := b.State(ctx); err != nil || s.Level != 1200 {
				t.Errorf("%s: %+v, %v; want what the call has really cost", name, s, err)
			}
			call(with(100), with(800), with(1300))
			if c := e.Cost(with(801)); c != with(801) {
				t.Errorf("%s: %v of more than fits", name, c)
			}
			if len(limits) > 1 {
				if err := b.SetLimits(ctx, perSecond, outbound.Limit{Capacity: 600, LeakRate: 500, Unit: tokens}); err != nil {
					t.Fatal(err)
				}
				call(known, with(600), with(600))
			}
		})
	}
}

// A first call whose only part is Free is admitted, and settles what it has used.
func TestAverage_FreeFirstCallIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const output = 2
		b := outbound.Must(outbound.NewBucket("output", outbound.Limit{Capacity: 800, LeakRate: 500, Unit: output}))
		e, free, used := Average{Bucket: b}, outbound.Cost{output: outbound.Free}, outbound.Cost{output: 400}
		p, err := b.Acquire(ctx, e.Cost(free))
		p.Settle(used)
		e.Learn(free, used)
		if s, _ := b.State(ctx); err != nil || s.Level != 400 || e.Cost(free) != used {
			t.Errorf("level %v, then %v: %v", s.Level, e.Cost(free), err)
		}
	})
}
