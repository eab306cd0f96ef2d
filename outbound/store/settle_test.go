package store

import (
	"math/rand/v2"
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
