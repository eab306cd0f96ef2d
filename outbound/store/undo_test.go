package store

import (
	"math/rand/v2"
	"testing"
)

// A call that waits for one limit raises the others by the units that run out of them
// until then. If the raise stayed when the call gives its place back, an hour's wait for
// one limit would fill every other limit for an hour.
func TestUndo_LeavesEachLimitAsItWas(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1. / 3600}, Limit{Capacity: 100, Rate: 10})
	l.book(Units{1}, 0)
	l.at(1)
	c := l.book(Units{1, 1}, 3599)
	l.level(1, 35991)
	l.at(2)
	if !l.Undo(l.limits, c) {
		t.Error("the last booking was not undone")
	}
	l.Settle(l.limits, c, &Units{5, 5}) // it has ended
	l.level(0, 1-2./3600)
	l.level(1, 0)
	l.book(Units{0, 100}, 0)
}

// Bookings that are undone in reverse order leave the state as it was.
func TestUndo_AllInReverseOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, limit := range []Limit{{Capacity: 1, Rate: 3}, {Capacity: 1, Rate: 200}, {Capacity: 7, Rate: 1. / 3}, {Capacity: 1, Rate: 1e5}, {Capacity: 1000, Rate: 1e6}, perSecond(10, 1), perSecond(7, 3600)} {
		for range 20 {
			l := newLife(t, limit)
			var places []*Charge
			var at float64
			for range 100 {
				c := new(Charge)
				l.Fill(l.limits, &Units{1}, &Units{1}, farthest, c)
				places = append(places, c)
				at += r.Float64() * min(4e-4, 4e-3/limit.Rate)
				l.at(at)
			}
			for i := range places {
				if !l.Undo(l.limits, places[len(places)-1-i]) {
					t.Fatalf("%v: place %d of 100 was not undone", limit, len(places)-i)
				}
				at += r.Float64() * min(4e-4, 4e-3/limit.Rate)
				l.at(at)
			}
			if l.Level[0] > 1e-9*limit.Capacity+4e-9*limit.Rate || l.Last > -BookingGrace {
				t.Fatalf("%v: level %v, last %v", limit, l.Level[0], l.Last)
			}
		}
	}
}
