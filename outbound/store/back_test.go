package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A call that waits for one limit raises the others by the units that run out of them
// until then. If the raise stayed when the call gives its place back, an hour's wait for
// one limit would fill every other limit for an hour.
func TestACallThatGivesItsPlaceBackLeavesEveryLimitAsItWas(t *testing.T) {
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

func TestPlacesGivenBackInARowAreAllUndone(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, limit := range []Limit{{Capacity: 1, Rate: 3}, {Capacity: 1, Rate: 200}, {Capacity: 7, Rate: 1. / 3}, {Capacity: 1, Rate: 1e5}, {Capacity: 1000, Rate: 1e6}, perSecond(10, 1), perSecond(7, 3600)} {
		for range 20 {
			l := newLife(t, limit)
			var places []*Charge
			var at float64
			for range 100 {
				c := new(Charge)
				l.Fill(l.limits, &Units{1}, farthest, c)
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

// A refused call frees the dial for as long as its own units take to run out. No call
// behind it has waited for the units that it cost beyond those.
func TestHold_CallThatCostMoreBunchesNoCalls(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1})
	a := l.book(Units{2}, 0)
	l.book(Units{2}, 2)
	c := l.book(Units{2}, 4)
	l.Settle(l.limits, a, &Units{3})
	l.Hold(l.limits, 4*time.Second, a, true)
	l.at(4)
	if in, _ := l.Due(c.Place); in < sec(2) {
		t.Errorf("the third call goes %v after the second, which went at the end of the hold; want 2s", in)
	}
}

func TestHold_LoweredRateBunchesNoCalls(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 2})
	a := l.book(Units{2}, 0)
	l.book(Units{2}, 1)
	c := l.book(Units{2}, 2)
	l.change(Limit{Capacity: 2, Rate: 0.5})
	l.Hold(l.limits, 4*time.Second, a, true)
	l.at(4)
	if in, _ := l.Due(c.Place); in < sec(1) {
		t.Errorf("the third call goes %v after the second, which went at the end of the hold; want 1s", in)
	}
}

func TestOnlyPlacesThatNoWorkerMayUseYetBecomeVoid(t *testing.T) {
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

func TestUnitsThatCameBackToOneCallAreGoneForAnother(t *testing.T) {
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

// A call leaves, the bucket is resumed, and the next call is undone: the first still counts for a
// whole window.
func TestAnUndoneCallEndsNoOtherCallsWindow(t *testing.T) {
	limits := []Limit{moving(3, 2*time.Second)}
	s := New(0, 1)
	s.Advance(limits, time.Second)
	var first, c Charge
	s.Fill(limits, &Units{1}, 0, &first)
	s.Resume(limits)
	s.Fill(limits, &Units{1}, 0, &c)
	s.Undo(limits, &c)
	if wait, _, ok := s.Fill(limits, &Units{3}, 0, &c); ok || wait != 2*time.Second {
		t.Errorf("admitted %v, wait %v, want 2s", ok, wait)
	}
}
