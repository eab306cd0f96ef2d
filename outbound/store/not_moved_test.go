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
