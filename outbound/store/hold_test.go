package store

import (
	"math"
	"testing"
	"time"
)

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

func TestHold_OfAnHourOnAnHourlyLimit(t *testing.T) {
	l := newLife(t, perSecond(1, 3600))
	c := l.book(Units{1}, 0)
	l.at(0.2)
	l.Refused(l.limits, c.Epoch, time.Hour, 0, c)
	l.book(Units{1}, 3600)
}

// After the hold one call goes, then they drip, and longer limits keep their room.
func TestHold_FillsOnlyTheShortestLimit(t *testing.T) {
	for succeeded, drip := range map[bool]float64{false: 0.1, true: 1.0 / 9} {
		l := newLife(t, Limit{Capacity: 1, Rate: 10}, Limit{Capacity: 5000, Rate: 5000.0 / 3600})
		c := l.book(Units{1, 1}, 0)
		l.at(0.01)
		if succeeded {
			l.Succeeded(c.Epoch)
		}
		l.Refused(l.limits, c.Epoch, time.Second, 0, c)
		l.book(Units{1, 1}, 1)
		var c2 Charge
		real, _, _ := l.Fill(l.limits, &Units{1, 1}, time.Hour, &c2)
		if d := real.Seconds() - 1; math.Abs(d-drip) > 1e-4 {
			t.Errorf("the second goes %v s after the first, want %v", d, drip)
		}
		if room := 5000 - l.Level[1]; room < 4990 {
			t.Errorf("room for %v in the hour, want 4 990 and more", room)
		}
	}
}

func TestHold_ShorterOneChangesNothing(t *testing.T) {
	for _, booked := range []int{0, 3} {
		l := newLife(t, Limit{Capacity: 2, Rate: 1})
		for i := range booked {
			l.book(Units{1}, max(0, float64(i-1)))
		}
		l.at(0.5)
		l.Hold(l.limits, 10*time.Second, nil, true)
		held := l.Clone()
		l.Hold(l.limits, 10*time.Second, nil, true)
		l.Hold(l.limits, 9*time.Second, nil, true)
		l.Hold(l.limits, -1, nil, true)
		l.Hold(l.limits, math.MinInt64, nil, true)
		l.Refused(l.limits, l.Epoch-1, 9*time.Second, 0, nil)
		if !sameStates(l.State, held) {
			t.Errorf("%d booked: after a hold\n%+v, after more\n%+v", booked, held, l.State)
		}
		// The longest counts, in any order.
		l.Hold(l.limits, 12*time.Second, nil, true)
		if l.Rem != 12*time.Second {
			t.Errorf("held for %v, want 12 s", l.Rem)
		}
	}
}

// All calls that were told to wait come back together. One goes, and then they drip,
// however much room there was.
func TestHold_OneCallLeavesAndThenTheyDrip(t *testing.T) {
	for _, booked := range []bool{false, true} {
		l := newLife(t, Limit{Capacity: 4, Rate: 1}, Limit{Capacity: 100, Rate: 1})
		c := l.book(Units{1, 1}, 0)
		if booked {
			l.book(Units{1, 1}, 0)
		}
		l.at(0.01)
		l.Refused(l.limits, c.Epoch, 9*time.Second, 0, c)
		l.Settle(l.limits, c, &Units{}) // gives nothing back: the hold has written off its units
		first := 9.0
		if booked { // the booked call goes first
			first = 10.000001
		}
		for i := range 4 {
			l.book(Units{1, 1}, first+float64(i))
		}
	}
}

// The units that were in a limit when a hold filled it up do not come back. If they did,
// two calls would go at once.
func TestHold_SettleReturnsNothingAfterIt(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1})
	c := l.book(Units{1}, 0)
	l.book(Units{1}, 0)
	l.Hold(l.limits, 10*time.Second, nil, true)
	l.Settle(l.limits, c, &Units{})
	l.book(Units{1}, 11.000001)
}

// A booking during a hold is out like any other. If the hold is extended the booking
// moves, and no call goes beside it.
func TestHold_ReservationDuringItMoves(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.Hold(l.limits, time.Second, nil, true)
	c := l.book(Units{1}, 1)
	l.at(0.5)
	l.Hold(l.limits, 10*time.Second, nil, true)
	if in, late := l.Due(c.Place); in != sec(10) || late != 0 {
		t.Errorf("due in %v, %v late, want 10 s", in, late)
	}
	l.book(Units{1}, 11.000001)
}

func TestHold_ReservationsKeepTheirDistance(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	a, b := l.book(Units{1}, 1), l.book(Units{1}, 2)
	l.at(0.5)
	l.Hold(l.limits, 10*time.Second, nil, true)
	for c, want := range map[*Charge]float64{a: 10.5, b: 11.5} {
		if in, late := l.Due(c.Place); in != sec(want) || late != 0 {
			t.Errorf("due in %v, %v late, want %v", in, late, sec(want))
		}
	}
	l.at(10.5) // the hold has ended, and the first is due half a second later
	l.book(Units{1}, 2.5)
	l.at(11.2)
	if in, late := l.Due(a.Place); in != 0 || late != sec(0.2) {
		t.Errorf("due in %v, %v late, want 0.2 s late", in, late)
	}
}

func TestResume_RefillsNothing(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1})
	c := l.book(Units{1}, 0)
	l.Succeeded(c.Epoch)
	l.book(Units{1}, 0)
	d := l.book(Units{1}, 1)
	l.Refused(l.limits, l.Epoch, 30*time.Second, 0, c)
	if l.Speed != 0.9 || l.Rem != 30*time.Second {
		t.Errorf("speed %v, held for %v", l.Speed, l.Rem)
	}
	l.Resume(l.limits)
	if l.Speed != 1 || l.Rem > 0 || d.Born == l.Born {
		t.Errorf("after Resume: %+v", l.State)
	}
	if l.Undo(l.limits, d) {
		t.Error("a booking of the life before was taken back")
	}
	l.Settle(l.limits, d, &Units{})
	l.level(0, 2) // the units above the brim were booked
	l.book(Units{1}, 1)
}

// A hold without bookings lets the limits leak ahead of real time. A Resume that ends it
// early takes that back.
func TestResume_UndoesWhatAHoldLeaked(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1}, Limit{Capacity: 90, Rate: 1})
	l.book(Units{1, 9}, 0)
	l.at(1)
	l.Hold(l.limits, time.Minute, nil, true)
	l.level(1, 0)
	l.at(3)
	l.Resume(l.limits)
	if l.Level[1] < 6 {
		t.Errorf("level %v three seconds after 9 units, want 6 or more", l.Level[1])
	}
}

func TestResume_KeepsWhatALoweredLimitHolds(t *testing.T) {
	high, low := []Limit{{Capacity: 10, Rate: 1}}, []Limit{{Capacity: 1, Rate: 1}}
	l := newLife(t, high...)
	l.book(Units{10}, 0)
	l.change(low...)
	l.Resume(l.limits)
	l.Resume(l.limits)
	l.change(high...)
	l.level(0, 10)
}

// An operator's pause lets the limits leak on: afterwards all calls leave that have capacity, and a
// Resume undoes it.
func TestPause_CostsOnlyItsTime(t *testing.T) {
	month := Limit{Capacity: 1000, Rate: 1000. / (30 * 86_400)}
	l := newLife(t, month)
	l.Hold(l.limits, time.Second, nil, false)
	for range 30 {
		if real, _, ok := l.Fill(l.limits, &Units{1}, time.Hour, new(Charge)); !ok || real > time.Second+time.Microsecond {
			t.Errorf("after a pause of a second a call leaves in %v", real)
		}
	}
	l.level(0, 30)

	l = newLife(t, month, Limit{Capacity: 5, Rate: 1})
	l.book(Units{3, 3}, 0)
	l.at(1)
	l.Hold(l.limits, time.Minute, nil, false)
	l.at(3)
	l.Resume(l.limits)
	l.level(1, 0) // 3 s after the 3 units
	for range 3 {
		l.book(Units{1, 1}, 0)
	}

	// Reservations wait for the end of the pause, and keep their distance.
	l = newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	a, b := l.book(Units{1}, 1), l.book(Units{1}, 2)
	l.Hold(l.limits, 10*time.Second, nil, false)
	for i, c := range []*Charge{a, b} {
		if in, _ := l.Due(c.Place); in != sec(11+float64(i)) {
			t.Errorf("reservation %d is due in %v", i, in)
		}
	}
}
