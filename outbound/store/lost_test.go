package store

import (
	"testing"
	"time"
)

// A charge that the store has lost returns nothing: its units are not in the key, and others are.
func TestSettle_LostChargeReturnsNothing(t *testing.T) {
	for _, limit := range []Limit{{Capacity: 10, Rate: 1}, moving(10, 10*time.Second), fixedWindow(10, 10*time.Second)} {
		var s Stored
		op := Op{Limits: []Limit{limit}, Action: Book, Costs: []Units{{3}}}
		now := time.Hour
		op.Apply(&s, now)
		replica := s.Clone()
		lost := op.Apply(&s, now+time.Millisecond).Charges[0]
		back := Op{Limits: op.Limits, Number: s.Number, Action: Book, Back: []Charge{lost}}
		if r := back.Apply(&replica, now+2*time.Millisecond); r.State.Level[0] < 2.9 {
			t.Errorf("%v: level %v after a return of what was lost, want 3", limit, r.State.Level[0])
		}
		if r := back.Apply(&s, now+2*time.Millisecond); r.State.Level[0] > 3.1 {
			t.Errorf("%v: level %v after a return, want 3", limit, r.State.Level[0])
		}
	}
}
