package outbound

import (
	"math"
	"sync"
	"testing"
)

func TestAnEstimateLearnsWhatComesBeyondTheKnown(t *testing.T) {
	var e Estimate
	known := Cost{1, 100}
	if c := e.Cost(known); c != known {
		t.Errorf("before the first call: %v", c)
	}
	e.Learn(known, Cost{1, 300})
	if c := e.Cost(known); c != (Cost{1, 300}) {
		t.Errorf("after one call: %v", c)
	}
	e.Learn(known, Cost{1, 500})
	if c := e.Cost(known); c != (Cost{1, 400}) {
		t.Errorf("after two, the mean: %v", c)
	}
	for range 200 {
		e.Learn(known, Cost{1, 50}) // less than was known: nothing beyond it
	}
	if c := e.Cost(known); c[0] != 1 || c[1] < 100 || c[1] > 101 {
		t.Errorf("after many that took nothing more: %v", c)
	}
	if quick := (&Estimate{Weight: 1}); true {
		quick.Learn(known, Cost{1, 300})
		quick.Learn(known, Cost{1, 700})
		if c := quick.Cost(known); c[1] != 700 {
			t.Errorf("with weight 1: %v", c)
		}
	}
}

func TestAnEstimateIgnoresWhatIsNoCostAndStaysANumber(t *testing.T) {
	for _, weight := range []float64{0, -1, 2, nan, inf, -inf, 0.5} {
		e := Estimate{Weight: weight}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for _, n := range append(noNumbers, huge...) {
					e.Learn(Cost{n}, Cost{1})
					e.Learn(Cost{1}, Cost{1, n})
				}
				for range 100 {
					e.Learn(Cost{1, 10}, Cost{1, 30})
				}
			})
		}
		wg.Wait()
		if c := e.Cost(Cost{1, 10}); !(math.Abs(c[0]-1) < 1e-9 && math.Abs(c[1]-30) < 1e-9) {
			t.Errorf("weight %v: %v, want 1 and 30", weight, c)
		}
	}
}
