package key

import (
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
