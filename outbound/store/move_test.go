package store

import (
	"testing"
	"time"
)

// A move that is not made leaves a window as it is, also where nothing else has changed.
func TestMove_NotMadeReturnsNothing(t *testing.T) {
	for _, limit := range []Limit{moving(10, 10*time.Second), fixedWindow(10, 10*time.Second)} {
		k := newKey(t, limit, Limit{Name: "b", Kind: Hourly, Capacity: 3})
		last := k.book(3700, 0, Units{1, 1}, Units{1, 1}).Charges[1]
		if r := k.do(3700, Op{Action: Book, Move: &last, Costs: []Units{{1, 3}}}); r.Moved || r.Changed || len(r.Charges) > 0 {
			t.Fatalf("moved %v, changed %v, %d charges", r.Moved, r.Changed, len(r.Charges))
		}
		k.State.look(k.Limits, false)
		if level := k.State.Level[0]; level != 2 {
			t.Errorf("%v: level %v, want 2", limit.Kind, level)
		}
	}
}

// A move is carried out in a step whose settles add nothing, and not in one whose settles add units.
func TestMove_AndSettles(t *testing.T) {
	for used, moved := range map[float64]bool{0: true, 1: true, 2: false} {
		k := newKey(t, one(3, 1)...)
		booked := k.do(0, Op{Action: Book, Costs: []Units{{1}, {3}}, Horizon: time.Hour}).Charges
		got := k.do(0, Op{Action: Book, Costs: []Units{{2}}, Move: &booked[1], Reports: []Report{{Kind: Settled, Charge: &booked[0], Used: Units{used}}}})
		if got.Moved != moved || len(got.Charges) == 1 != moved {
			t.Errorf("a call of 1 that has cost %v: moved %v, %d charges; want %v", used, got.Moved, len(got.Charges), moved)
		}
	}
}
