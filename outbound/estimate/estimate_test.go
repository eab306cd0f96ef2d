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

func TestEstimate_LearnsTheRest(t *testing.T) {
	var e Average
	known := outbound.Cost{1, 100}
	if c := e.Cost(known); c != known {
		t.Errorf("before the first call: %v", c)
	}
	e.Learn(known, outbound.Cost{1, 300})
	if c := e.Cost(known); c != (outbound.Cost{1, 300}) {
		t.Errorf("after one call: %v", c)
	}
	e.Learn(known, outbound.Cost{1, 500})
	if c := e.Cost(known); c != (outbound.Cost{1, 400}) {
		t.Errorf("after two, the mean: %v", c)
	}
	for range 200 {
		e.Learn(known, outbound.Cost{1, 50}) // less than was known: nothing beyond it
	}
	if c := e.Cost(known); c[0] != 1 || c[1] < 100 || c[1] > 101 {
		t.Errorf("after many that took nothing more: %v", c)
	}
	if quick := (&Average{Weight: 1}); true {
		quick.Learn(known, outbound.Cost{1, 300})
		quick.Learn(known, outbound.Cost{1, 700})
		if c := quick.Cost(known); c[1] != 700 {
			t.Errorf("with weight 1: %v", c)
		}
	}
}

func TestEstimate_IgnoresInvalidCosts(t *testing.T) {
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
}

// The documented use of it, where calls cost more than the bucket holds.
func TestEstimate_NeverExceedsTheCapacity(t *testing.T) {
	const calls, tokens = 0, 1
	perMinute, perSecond := outbound.Limit{Capacity: 800, LeakRate: 500, Unit: tokens}, outbound.Limit{Capacity: 40, LeakRate: 20}
	for _, name := range []string{"one", "two", "shared"} {
		synctest.Test(t, func(t *testing.T) {
			b := map[string]*outbound.Bucket{
				"one":    outbound.Must(outbound.NewBucket("one", perMinute)),
				"two":    outbound.Must(outbound.NewBucket("two", perSecond, perMinute)),
				"shared": outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "shared", perSecond, perMinute)),
			}[name]
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
			known := outbound.Cost{}
			if name != "one" {
				known[calls] = 1
			}
			with := func(n float64) outbound.Cost { c := known; c[tokens] = n; return c }
			call(known, with(300), with(900))
			call(known, with(800), with(1200))
			if s, err := b.State(ctx); err != nil || s.Level != 1200 {
				t.Errorf("%s: %+v, %v; want what the call has really cost", name, s, err)
			}
			call(with(100), with(800), with(1300))
			if c := e.Cost(with(801)); c != with(801) {
				t.Errorf("%s: %v of more than fits", name, c)
			}
			if name != "one" {
				if err := b.SetLimits(ctx, perSecond, outbound.Limit{Capacity: 600, LeakRate: 500, Unit: tokens}); err != nil {
					t.Fatal(err)
				}
				call(known, with(600), with(600))
			}
		})
	}
}

func TestEstimate_FirstCallIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const output = 2
		b := outbound.Must(outbound.NewBucket("output", outbound.Limit{Capacity: 800, LeakRate: 500, Unit: output}))
		e := Average{Bucket: b}
		p, err := b.Acquire(ctx, e.Cost(outbound.Cost{output: outbound.Free}))
		if err != nil {
			t.Fatal(err)
		}
		p.Settle(outbound.Cost{output: 400})
		e.Learn(outbound.Cost{output: outbound.Free}, outbound.Cost{output: 400})
		if s, _ := b.State(ctx); s.Level != 400 || e.Cost(outbound.Cost{output: outbound.Free}) != (outbound.Cost{output: 400}) {
			t.Errorf("level %v, then %v", s.Level, e.Cost(outbound.Cost{output: outbound.Free}))
		}
		for _, bad := range noNumbers {
			if c := (&Average{First: outbound.Cost{bad}}).Cost(outbound.Cost{1}); c != (outbound.Cost{1}) {
				t.Errorf("first %v: %v", bad, c)
			}
		}
	})
}
