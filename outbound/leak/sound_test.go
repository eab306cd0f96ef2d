package leak

import (
	"math"
	"testing"
	"time"
)

func TestARowThatSteeringCannotHaveLeftIsNotSound(t *testing.T) {
	limits := one(10, 10)
	sound := func(set func(*Row)) bool {
		s := New(0)
		s.Refused(limits, s.Epoch, 0, 0, nil)
		set(&s.Row)
		return s.Sound(limits, 0)
	}
	for name, c := range map[string]struct {
		set       func(r *Row, x float64)
		good, bad []float64
	}{
		"calls":    {func(r *Row, x float64) { r.Calls = int64(x) }, []float64{0, 1<<32 - 1}, []float64{-1, 1 << 32}},
		"refusals": {func(r *Row, x float64) { r.Refused = int64(x) }, []float64{0, 1<<12 - 1}, []float64{-1, 1 << 12}},
		"top":      {func(r *Row, x float64) { r.Top = x }, []float64{MinSpeed, 1}, []float64{0, 0.009, 1.001, -1, math.NaN(), math.Inf(1)}},
		"per":      {func(r *Row, x float64) { r.Per = x }, []float64{0, 1<<32 - 1}, []float64{-1, 1 << 32, math.NaN(), math.Inf(1)}},
		"fast":     {func(r *Row, x float64) { r.Fast = x }, []float64{0, 1}, []float64{-1, 1.001, math.NaN(), math.Inf(1)}},
		"trust":    {func(r *Row, x float64) { r.Trust = int64(x) }, []float64{-3, 128}, []float64{-4, 129}},
		"until":    {func(r *Row, x float64) { r.Until = time.Duration(x) }, []float64{-9e18, 9e18}, nil},
	} {
		for _, x := range c.good {
			if !sound(func(r *Row) { c.set(r, x) }) {
				t.Errorf("%s of %v is not sound", name, x)
			}
		}
		for _, x := range c.bad {
			if sound(func(r *Row) { c.set(r, x) }) {
				t.Errorf("%s of %v is sound", name, x)
			}
		}
	}
	if !sound(func(r *Row) { *r = Row{} }) {
		t.Error("no row is not sound")
	}
}
