package key

import (
	"math"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A charge keeps its units of limits that stay. A new limit counts the call's cost.
func TestLimits_AlignCharge(t *testing.T) {
	a, b, c := store.Limit{Capacity: 100, Rate: 1}, store.Limit{Capacity: 100, Rate: 1, Unit: 1}, store.Limit{Capacity: 100, Rate: 1, Name: "other"}
	first, second, third := NewLimits([]store.Limit{a}), NewLimits([]store.Limit{b, a}), NewLimits([]store.Limit{c})
	charge := store.Charge{N: store.Units{10}, Y: store.Units{40}, Up: store.Units{1}, Place: 3 * time.Second, Number: 7}
	d := second.align(&charge, first.Law, &reports.Numbers{10, 7})
	if d.N != (store.Units{7, 10}) || d.Y != (store.Units{0, 40}) || d.Up != (store.Units{0, 1}) || d.Place != charge.Place || d.Number != 7 {
		t.Errorf("%+v", d)
	}
	if d = third.align(&charge, first.Law, &reports.Numbers{12}); d.N != (store.Units{12}) || d.Y != (store.Units{}) {
		t.Errorf("of none that has stayed: %+v", d)
	}
	if d = first.align(&charge, first.Law, &reports.Numbers{12}); d != &charge {
		t.Errorf("copied: %+v", d)
	}
}

// A store may say anything. A key adopts sound limits only.
func TestForce_LearnsSoundLimitsOnly(t *testing.T) {
	mine := NewLimits([]store.Limit{{Capacity: 1, Rate: 1}})
	leaky := store.Limit{Capacity: 2, Rate: 1}
	for name, law := range map[string][]store.Limit{
		"above all bounds":   {{Capacity: math.Inf(1), Rate: 1}},
		"not a number":       {{Capacity: math.NaN(), Rate: 1}},
		"the same twice":     {leaky, leaky},
		"an unknown zone":    {{Capacity: 2, Kind: store.Daily, Zone: "Nowhere/Else"}},
		"a name of no UTF-8": {{Capacity: 2, Rate: 1, Name: "\xff"}},
		"too many":           make([]store.Limit, store.Max+1),
	} {
		f := &Force{Limits: mine, number: 1}
		if is, err := f.learn(&store.Reply{Number: 2, Limits: law, State: store.State{Speed: 1}}, &mine, true); err != ErrLimits || is != f {
			t.Errorf("%s: %v, %v", name, is.Law, err)
		}
	}
	f := &Force{Limits: mine, number: 1}
	if is, err := f.learn(&store.Reply{Number: 2, Limits: []store.Limit{leaky}}, &mine, true); err != nil || !store.Same(is.Law, []store.Limit{leaky}) {
		t.Errorf("%v, %v", is.Law, err)
	}
}
