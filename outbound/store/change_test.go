package store

import (
	"testing"
	"time"
)

func TestChange_VoidsOnlyFarReservations(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 2}, Limit{Capacity: 10, Rate: 1})
	l.book(Units{2, 1}, 0)
	l.book(Units{2, 1}, 1)
	l.change(l.limits...)
	l.level(0, 4)
	l.level(1, 2)
	l.book(Units{2, 1}, 2)
	l.book(Units{2, 1}, 3)
	if l.change(l.limits...); l.Last != Deaf {
		t.Errorf("the last booking is %v away, want %v", l.Last, Deaf)
	}
	l.level(0, 4) // the places that stand fill it so far
	l.level(1, 4) // the void places are not in it
	l.book(Units{1}, 1.5)
}

// What is left of a call by another rate cannot be proved.
func TestChange_OtherRateReturnsNothing(t *testing.T) {
	l := newLife(t, Limit{Capacity: 10, Rate: 1}, Limit{Capacity: 20, Rate: 1})
	l.at(100)
	c := l.book(Units{10, 10}, 0)
	l.change(Limit{Capacity: 10, Rate: 2}, Limit{Capacity: 30, Rate: 1})
	l.at(104)
	l.book(Units{8, 8}, 0)
	l.Settle(l.limits, c, &Units{})
	l.level(0, 10)
	l.level(1, 8) // of the 10 units 6 were left
}

func TestChange_LoweredLimitCountsForLaterReservations(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	c := l.book(Units{1}, 1)
	l.change(Limit{Capacity: 2, Rate: 0.5}, Limit{Capacity: 5, Rate: 1})
	if in, _ := l.Due(c.Place); in != sec(1) {
		t.Errorf("booked for %v, want 1 s", in)
	}
	l.level(0, 1.5) // a second later it is 1, as without the change
	l.level(1, 3)   // at most the 2 units that are booked, a second later
	// A limit that is newer than the call takes the units beyond its cost.
	was := l.Clone()
	cheaper := *c
	cheaper.N[1] = 1
	l.Settle(l.limits, &cheaper, &Units{1, 1.5})
	l.level(0, 1.5)
	l.level(1, 3.5)
	l.State = was
	l.book(Units{1, 1}, 1)
	l.book(Units{1, 1}, 3)
}

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
		l.Fill(l.limits, &Units{1}, time.Second, next)
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
