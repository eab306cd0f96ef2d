package store

import (
	"testing"
	"time"
)

// Units that calls return are there once, and no units of calls that are booked are taken.
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

// A charge that the store has lost returns nothing: its units are not in the key, and others are.
func TestSettle_LostChargeReturnsNothing(t *testing.T) {
	for _, limit := range []Limit{{Capacity: 10, Rate: 1}, moving(10, 10*time.Second), fixedWindow(10, 10*time.Second)} {
		k := newKey(t, limit)
		k.book(3600, 0, Units{3})
		replica := *k
		replica.Stored = k.Stored.Clone()
		back := Op{Action: Book, Unused: k.book(3600.001, 0, Units{3}).Charges}
		if r := replica.do(3600.002, back); r.State.Level[0] < 2.9 {
			t.Errorf("%v: level %v after a return of what was lost, want 3", limit, r.State.Level[0])
		}
		if r := k.do(3600.002, back); r.State.Level[0] > 3.1 {
			t.Errorf("%v: level %v after a return, want 3", limit, r.State.Level[0])
		}
	}
}
