package store

import (
	"testing"
	"time"
)

func TestSettle_UnitsReturnOnce(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1})
	a := l.book(Units{1}, 0)
	b := l.book(Units{1}, 0)
	l.Settle(l.limits, a, &Units{})
	l.book(Units{1}, 0)
	l.Settle(l.limits, b, &Units{})
	l.level(0, 1)
	l.book(Units{2}, 1)

	// If the second settle did not count what has come back since, it would take units
	// that are booked.
	l = newLife(t, Limit{Capacity: 2, Rate: 1})
	a = l.book(Units{1}, 0)
	b = l.book(Units{1}, 0)
	l.Settle(l.limits, a, &Units{})
	l.book(Units{2}, 1)
	l.Settle(l.limits, b, &Units{})
	l.level(0, 3)
	l.book(Units{1}, 2)
}

func TestSettle_ReturnsOnlyWhatIsStillThere(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1000, Rate: 100})
	a := l.book(Units{1000}, 0)
	l.at(9)
	l.book(Units{900}, 0)
	l.Settle(l.limits, a, &Units{600})
	l.level(0, 900) // 100 came back, not 400
	if a.N[0] != 600 {
		t.Errorf("has cost %v, want 600", a.N[0])
	}
}

func TestSettle_ReturnsNothingBeforeALaterReservation(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	a := l.book(Units{1}, 1)
	l.book(Units{1}, 2)
	l.at(0.5)
	l.Settle(l.limits, a, &Units{})
	l.level(0, 2.5)
	l.book(Units{1}, 2.5)
}

func TestSettle_FirstCounts(t *testing.T) {
	for _, first := range []float64{0, 1, 5} {
		l := newLife(t, Limit{Capacity: 3, Rate: 1})
		c := l.book(Units{2}, 0)
		l.book(Units{1}, 0)
		l.Settle(l.limits, c, &Units{first})
		settled := l.Clone()
		for _, again := range []float64{0, 1, 2, 9} {
			l.Settle(l.limits, c, &Units{again})
		}
		if l.Undo(l.limits, c) || !sameStates(l.State, settled) {
			t.Errorf("settled to %v, then again: level %v, then %v", first, settled.Level[0], l.Level[0])
		}
	}
}

func TestSettle_AddsAboveTheCapacity(t *testing.T) {
	l := newLife(t, Limit{Capacity: 10, Rate: 1})
	c := l.book(Units{10}, 0)
	l.Settle(l.limits, c, &Units{35})
	l.level(0, 35)
	l.book(Units{1}, 26)
}

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
