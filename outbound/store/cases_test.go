package store

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// life is a bucket in a test. Its times are seconds since it was made.
type life struct {
	*testing.T
	State
	limits []Limit
	number int64
}

func newLife(t *testing.T, limits ...Limit) *life {
	limits = numbered(limits)
	return &life{t, New(-7*time.Hour, len(limits)), limits, 0} // process time may be negative
}

// numbered names the limits that have no names by their order.
func numbered(limits []Limit) []Limit {
	limits = slices.Clone(limits)
	for i := range limits {
		if limits[i].Name == "" {
			limits[i].Name = fmt.Sprint(i)
		}
	}
	return limits
}

// change sets other limits.
func (l *life) change(limits ...Limit) {
	limits = numbered(limits)
	l.number++
	l.Change(l.limits, limits, l.number)
	l.limits = limits
}

func sec(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

func (l *life) at(s float64) { l.Advance(l.limits, -7*time.Hour+sec(s)) }

// book books a place and checks how many seconds away it is.
func (l *life) book(n Units, wait float64) *Charge {
	l.Helper()
	c := new(Charge)
	if real, _, ok := l.Fill(l.limits, &n, time.Hour*9, c); !ok || real < sec(wait) || real > sec(wait)+3 {
		l.Errorf("a call of %v goes after %v (%v), want %v", n[:2], real, ok, sec(wait))
	}
	return c
}

func (l *life) level(i int, want float64) {
	l.Helper()
	if got := l.Level[i]; math.Abs(got-want) > 1e-6 {
		l.Errorf("level %v, want %v", got, want)
	}
}

func perSecond(n, in float64) Limit { return Limit{Capacity: 1, Rate: n / (in + 0.01)} }

func TestUnusedUnitsComeBackOnlyAsFarAsOthersHaveNotFilledSince(t *testing.T) {
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

func TestNothingComesBackWhileALaterCallIsBooked(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	a := l.book(Units{1}, 1)
	l.book(Units{1}, 2)
	l.at(0.5)
	l.Settle(l.limits, a, &Units{})
	l.level(0, 2.5)
	l.book(Units{1}, 2.5)
}

// The second call fills the other limit at 2 s, not at once.
func TestACallThatWaitsForOneLimitFillsTheOthersWhenItGoes(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 0.5}, Limit{Capacity: 3, Rate: 1})
	l.book(Units{1, 1}, 0)
	l.book(Units{1, 3}, 2)
	l.book(Units{1, 3}, 5) // not 4, with 4 units together
}

func TestAnHourlyLimitThatIsHeldForAnHourGoesAfterAnHour(t *testing.T) {
	l := newLife(t, perSecond(1, 3600))
	c := l.book(Units{1}, 0)
	l.at(0.2)
	l.Refused(l.limits, c.Epoch, time.Hour, 0, c)
	l.book(Units{1}, 3600)
}

// After the hold one call goes, then they drip, and longer limits keep their room.
func TestAHoldCostsOnlyTheShortestLimit(t *testing.T) {
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

func TestAHoldThatIsRepeatedOrShorterChangesNothing(t *testing.T) {
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
func TestAfterAHoldOneGoesAndThenItDrips(t *testing.T) {
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
func TestNothingComesBackIntoTheDripAfterAHold(t *testing.T) {
	l := newLife(t, Limit{Capacity: 2, Rate: 1})
	c := l.book(Units{1}, 0)
	l.book(Units{1}, 0)
	l.Hold(l.limits, 10*time.Second, nil, true)
	l.Settle(l.limits, c, &Units{})
	l.book(Units{1}, 11.000001)
}

// A booking during a hold is out like any other. If the hold is extended the booking
// moves, and no call goes beside it.
func TestACallThatIsBookedDuringAHoldMovesWithIt(t *testing.T) {
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

func TestBookedCallsMoveWithAHoldAndKeepTheirDistance(t *testing.T) {
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

func TestAClockThatStepsBackLosesTheStepAndNothingElse(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1})
	l.book(Units{1}, 0)
	a := l.book(Units{1}, 1)
	l.at(0.5)
	dial := l.Dial()
	l.at(-5000)
	if l.Dial() != dial {
		t.Errorf("the dial went from %v to %v", dial, l.Dial())
	}
	if in, _ := l.Due(a.Place); in != sec(0.5) {
		t.Errorf("due in %v, want 0.5 s", in)
	}
	l.book(Units{1}, 1.5)
	l.at(-4998)
	l.level(0, 0.5)
}

func TestOnlyTheFirstSettleCounts(t *testing.T) {
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

func TestMoreThanWasAcquiredGoesAboveTheBrim(t *testing.T) {
	l := newLife(t, Limit{Capacity: 10, Rate: 1})
	c := l.book(Units{10}, 0)
	l.Settle(l.limits, c, &Units{35})
	l.level(0, 35)
	l.book(Units{1}, 26)
}

func TestResumeEndsHoldAndSlownessAndRefillsNothing(t *testing.T) {
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
func TestResumeTakesBackWhatAHoldLetLeakAhead(t *testing.T) {
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

func TestTheLastBookingIsTakenBackAsIfItHadNeverBeen(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1}, Limit{Capacity: 3, Rate: 2})
	l.book(Units{1, 1}, 0)
	was := l.State
	c := l.book(Units{1, 2}, 1)
	if !l.Undo(l.limits, c) || l.Undo(l.limits, c) {
		t.Error("the last booking was not taken back, or twice")
	}
	l.level(0, 1)
	if l.Last != was.Last {
		t.Errorf("last booking at %v, want %v", l.Last, was.Last)
	}
	l.book(Units{1, 1}, 1)
}

// Two bookings for one place may fill different limits. If undoing the first forgot the
// second, others would overtake it.
func TestABookingIsNotTheLastIfAnotherStandsBesideIt(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 1}, Limit{Capacity: 3, Rate: 1})
	l.book(Units{1, 0}, 0)
	a := l.book(Units{1, 0}, 1)
	l.book(Units{0, 1}, 1)
	if l.Undo(l.limits, a) {
		t.Error("the booking before the last was taken back")
	}
	l.book(Units{0, 1}, 1)

	l = newLife(t, l.limits...)
	l.book(Units{1, 0}, 0)
	a = l.book(Units{1, 0}, 1)
	l.book(Units{0, 1}, 1)
	rest := l.limits[:1] // the limit that shows the other booking is gone
	l.change(rest...)
	if l.Undo(rest, a); l.Last != time.Second {
		t.Errorf("the last booking is %v away, want 1 s", l.Last)
	}
}

// What is left of a call by another rate cannot be proved.
func TestALimitWithAnotherRateReturnsNothing(t *testing.T) {
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

func TestResumeForgetsNothingThatALoweredLimitHolds(t *testing.T) {
	high, low := []Limit{{Capacity: 10, Rate: 1}}, []Limit{{Capacity: 1, Rate: 1}}
	l := newLife(t, high...)
	l.book(Units{10}, 0)
	l.change(low...)
	l.Resume(l.limits)
	l.Resume(l.limits)
	l.change(high...)
	l.level(0, 10)
}

func TestALoweredLimitBindsLaterBookingsAndNoneOvertakes(t *testing.T) {
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
func TestLimitsThatAreSetAgainAndAgainCostNoCall(t *testing.T) {
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
func TestAChangeRaisesALevelByNoMoreThanIsBookedAndHasNotGone(t *testing.T) {
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

// An operator's pause lets the limits leak on: afterwards all calls leave that have capacity, and a
// Resume undoes it.
func TestAPauseCostsNothingButItsTime(t *testing.T) {
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
