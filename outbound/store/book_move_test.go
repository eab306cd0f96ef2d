package store

import (
	"testing"
	"time"
)

// A move that is not made leaves a window as it is, also where nothing else has changed.
func TestMove_NotMadeReturnsNothing(t *testing.T) {
	for _, limit := range []Limit{moving(10, 10*time.Second), fixedWindow(10, 10*time.Second)} {
		var s Stored
		op := Op{Limits: []Limit{limit, {Name: "b", Kind: Hourly, Capacity: 3}}, Action: Book, Costs: []Units{{1, 1}}, Periods: []Period{{}, periodOf(3700*time.Second, 3600)}}
		now := 3700 * time.Second
		op.Apply(&s, now)
		last := op.Apply(&s, now).Charges[0]
		op.Move, op.Costs, op.Number = &last, []Units{{1, 3}}, 1
		if r := op.Apply(&s, now); r.Moved || r.Changed || len(r.Charges) > 0 {
			t.Fatalf("moved %v, changed %v, %d charges", r.Moved, r.Changed, len(r.Charges))
		}
		s.State.look(s.Limits, false)
		if level := s.State.Level[0]; level != 2 {
			t.Errorf("%v: level %v, want 2", limit.Kind, level)
		}
	}
}

// A move is carried out in a step whose settles add nothing, and not in one whose settles add units.
func TestMove_AndSettles(t *testing.T) {
	for used, moved := range map[float64]bool{0: true, 1: true, 2: false} {
		var s Stored
		op := Op{Limits: one(3, 1), Action: Book, Costs: []Units{{1}, {3}}, Horizon: time.Hour}
		r := op.Apply(&s, 0)
		again := Op{
			Limits: s.Limits, Number: s.Number, Action: Book, Costs: []Units{{2}}, Move: &r.Charges[1],
			Reports: []Report{{Kind: Settled, Charge: &r.Charges[0], Used: Units{used}}},
		}
		if got := again.Apply(&s, 0); got.Moved != moved || len(got.Charges) == 1 != moved {
			t.Errorf("a call of 1 that has cost %v: moved %v, %d charges; want %v", used, got.Moved, len(got.Charges), moved)
		}
	}
}
