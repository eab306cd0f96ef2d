package store

import (
	"testing"
	"time"
)

// However often limits are set, no reservation of the next second moves, and the rate is kept.
func TestChange_ManyMoveNoReservationOfTheNextSecond(t *testing.T) {
	a, b := Limit{Capacity: 1, Rate: 10}, Limit{Capacity: 1, Rate: 10.1}
	l := newLife(t, a)
	calls := 0
	var next *Charge
	for ms := range 30_000 {
		l.at(float64(ms) / 1000)
		if ms%2 == 0 {
			l.change(b)
		} else {
			l.change(a)
		}
		if next != nil {
			if in, _ := l.Due(next.Place); in > 0 {
				continue
			}
			calls++
		}
		next = new(Charge)
		l.Fill(l.limits, &Units{1}, &Units{1}, time.Second, next)
	}
	if calls < 298 || calls > 304 {
		t.Errorf("%d calls in 30 s at 10 to 10.1 a second", calls)
	}
}

// A change of limits is no reason to wait: the levels keep what was charged.
func TestChange_RaisesLevelsByReservationsAtMost(t *testing.T) {
	old, limits := []Limit{{Capacity: 500, Rate: 1}, {Capacity: 10, Rate: 10}}, []Limit{{Capacity: 500, Rate: 2}, {Capacity: 10, Rate: 5}, {Capacity: 100, Rate: 1}}
	l := newLife(t, old...)
	l.book(Units{1, 1}, 0)
	l.change(limits...)
	l.level(0, 1)
	l.level(1, 1)
	l.level(2, 0) // nothing is booked

	l = newLife(t, old...)
	l.book(Units{2, 10}, 0)
	l.book(Units{2, 8}, 0.8)
	l.change(limits...)
	l.level(0, 4.8) // 0.8 s later, when the booked call goes, it is 3.2 as without the change
	l.level(1, 14)
	l.level(2, 4.8)
	l.at(0.8)
	l.level(0, 3.2)
}

// A call from before a change of its window's length returns nothing.
func TestChange_OfAWindowReturnsNothingFromBefore(t *testing.T) {
	for _, length := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		was, is := moving(10, 10*time.Second), moving(10, length)
		was.Unnamed, is.Unnamed = true, true // so is continues was
		l := newLife(t, was)
		c := l.book(Units{4}, 0)
		l.change(is)
		l.Settle(l.limits, c, &Units{1})
		want := 4.
		if length == 10*time.Second {
			want = 1
		}
		l.level(0, want)
	}
}
