package store

import (
	"math"
	"slices"
	"testing"
	"time"
)

// A refused call lets the clock run for as long as its own units leak, as they were booked. Calls
// behind it have not waited for units that it cost beyond those, or for a rate that was lowered.
func TestHold_BunchesNoCalls(t *testing.T) {
	for rate, spoil := range map[float64]func(l *life, c *Charge){
		1: func(l *life, c *Charge) { l.Settle(l.limits, c, &Units{3}) },
		2: func(l *life, _ *Charge) { l.change(Limit{Capacity: 2, Rate: 0.5}) },
	} {
		l := newLife(t, Limit{Capacity: 2, Rate: rate})
		first, apart := l.book(Units{2}, 0), 2/rate
		l.book(Units{2}, apart)
		third := l.book(Units{2}, 2*apart)
		spoil(l, first)
		l.Hold(l.limits, 4*time.Second, first, true)
		l.at(4)
		if in, _ := l.Due(third.Place); in < sec(apart) {
			t.Errorf("the third call leaves %v after the second, which left at the end of the hold; want %vs", in, apart)
		}
	}
}

// After the hold one call leaves, then they drip, and longer limits keep their capacity.
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
		real, _, _ := l.Fill(l.limits, &Units{1, 1}, &Units{1, 1}, time.Hour, &c2)
		if d := real.Seconds() - 1; math.Abs(d-drip) > 1e-4 {
			t.Errorf("the second goes %v s after the first, want %v", d, drip)
		}
		if room := 5000 - l.Level[1]; room < 4990 {
			t.Errorf("room for %v in the hour, want 4 990 and more", room)
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

// No call has left between the booking of c, before the hold, and its departure after it,
// although the hold has filled the limit up.
func TestSince_HoldCountsAsNoCall(t *testing.T) {
	l := newLife(t, Limit{Capacity: 5, Rate: 1})
	var c *Charge
	for i := range 8 {
		c = l.book(Units{1}, max(0, float64(i-4)))
	}
	l.Hold(l.limits, 5*time.Second, nil, true)
	l.at(8.1)
	if since := l.Since(l.limits, c, 0); since > 1 {
		t.Errorf("%v units have left since, want none", since)
	}
}

// Each refusal in a row doubles the hold, up to the longest one. Those of an older epoch do not count.
func TestRefused_InARowDoublesTheHold(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 10})
	for i := range 14 {
		l.Advance(l.limits, l.At+max(0, l.Rem)+59*time.Minute)
		c := l.book(Units{1}, 0)
		l.Refused(l.limits, c.Epoch, 0, 0, c)
		want := min(time.Hour, time.Second<<i)
		if l.Rem != want || l.Speed != 1 {
			t.Errorf("refusal %d: held for %v at speed %v, want %v at 1", i, l.Rem, l.Speed, want)
		}
		l.Refused(l.limits, c.Epoch, 0, 0, c) // of an older epoch now
		if l.Rem != want {
			t.Errorf("refusal %d, again: held for %v, want %v", i, l.Rem, want)
		}
	}
	for i, most := range []time.Duration{time.Millisecond, 5 * time.Second, 0, 2 * time.Hour} {
		l.Advance(l.limits, l.At+max(0, l.Rem)+59*time.Minute)
		c := l.book(Units{1}, 0)
		l.Refused(l.limits, c.Epoch, 0, most, c)
		if want := []time.Duration{time.Millisecond, 5 * time.Second, time.Hour, time.Hour}[i]; l.Rem != want {
			t.Errorf("at most %v: held for %v, want %v", most, l.Rem, want)
		}
	}
	epoch := l.Epoch
	l.Resume(l.limits)
	l.Refused(l.limits, epoch, 0, 0, nil)
	if l.Rem > 0 {
		t.Errorf("a refusal from before a Resume holds for %v", l.Rem)
	}
}

// Refusals are forgotten an hour after the end of the hold, for all kinds of limits together.
func TestRefused_IsForgottenAnHourAfterTheHold(t *testing.T) {
	for _, hold := range []time.Duration{0, 5 * time.Hour} {
		for after, want := range map[float64]time.Duration{3599: 4 * time.Second, 3601: time.Second} {
			l := newLife(t, Limit{Capacity: 10, Rate: 10}, moving(1000, time.Minute))
			for range 2 {
				l.Refused(l.limits, l.Epoch, hold, 0, nil)
				l.Advance(l.limits, l.At+l.Rem)
			}
			l.Advance(l.limits, l.At+sec(after))
			if l.Refused(l.limits, l.Epoch, 0, 0, nil); l.Rem != want {
				t.Errorf("%v s after the end of a hold of %v: held for %v, want %v", after, hold, l.Rem, want)
			}
		}
	}
}

// The state says why a key is on hold: the reason of the report that holds it the longest.
func TestReport_ReasonIsThatOfTheHold(t *testing.T) {
	k := newKey(t, Limit{Capacity: 1, Rate: 1})
	for _, step := range []struct {
		wait time.Duration
		why  uint8
		want uint8
	}{{10 * time.Second, 3, 3}, {time.Second, 4, 3}, {20 * time.Second, 5, 5}} {
		if r := k.report(3600, Report{Kind: Held, Wait: step.wait, Reason: step.why}); r.State.Why != step.want {
			t.Errorf("a hold of %v: reason %d, want %d", step.wait, r.State.Why, step.want)
		}
	}
}

// A hold moves all reservations by as much, and they keep their distance.
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

// A Resume after a change keeps what a lowered limit holds beyond its capacity.
func TestResume_KeepsWhatALoweredLimitHolds(t *testing.T) {
	high, low := []Limit{{Capacity: 10, Rate: 1}}, []Limit{{Capacity: 1, Rate: 1}}
	l := newLife(t, high...)
	l.book(Units{10}, 0)
	l.change(low...)
	l.Resume(l.limits)
	l.Resume(l.limits)
	l.change(high...)
	l.level(0, 10)

	l = newLife(t, Limit{Capacity: 5, Rate: 1}) // once a hold is over, all that leaked in it has leaked
	l.book(Units{5}, 0)
	l.at(1)
	l.Hold(l.limits, 10*time.Second, nil, true)
	l.at(2)
	l.change(Limit{Capacity: 5, Rate: 0.1})
	l.at(3600)
	l.Resume(l.limits)
	l.level(0, 0)
}

// What is reserved within a second of a Resume counts, after a second Resume too: a process that has
// not heard of it lets it leave.
func TestResume_CountsWhatMayStillLeave(t *testing.T) {
	for _, limit := range []Limit{{Capacity: 1, Rate: 2}, {Kind: Window, Capacity: 1, Rate: 2, Window: time.Second / 2}} {
		for resumes := 1; resumes <= 2; resumes++ {
			l := newLife(t, limit)
			l.book(Units{1}, 0)
			l.book(Units{1}, 0.5)
			for range resumes {
				l.Resume(l.limits)
			}
			if w, _, _ := l.Wait(l.limits, &Units{1}); w < time.Second {
				t.Errorf("%v: after %d Resumes a call leaves in %v, and another may leave in 500ms", limit, resumes, w)
			}
		}
	}
}

// An operator's pause lets the limits leak on: afterwards all calls leave that have capacity, and a
// Resume undoes it.
func TestPause_CostsOnlyItsTime(t *testing.T) {
	month := Limit{Capacity: 1000, Rate: 1000. / (30 * 86_400)}
	l := newLife(t, month)
	l.Pause(l.limits, time.Second)
	for range 30 {
		if real, _, ok := l.Fill(l.limits, &Units{1}, &Units{1}, time.Hour, new(Charge)); !ok || real > time.Second+time.Microsecond {
			t.Errorf("after a pause of a second a call leaves in %v", real)
		}
	}
	l.level(0, 30)

	l = newLife(t, Limit{Capacity: 100, Rate: 1}, moving(100, time.Minute)) // a call that has left a moment before
	l.book(Units{100, 100}, 0)
	l.Pause(l.limits, time.Minute)
	l.at(60)
	l.level(0, 40)
	l.book(Units{60, 60}, 0)

	l = newLife(t, Limit{Capacity: 100, Rate: 1}) // a slowed clock stays as slow
	l.Speed = 0.5
	l.book(Units{100}, 0)
	alone := State{At: l.At, Speed: l.Speed, Level: l.Level, Parts: slices.Clone(l.Parts)}
	l.Pause(l.limits, time.Minute)
	l.at(60)
	alone.Advance(l.limits, l.At)
	if l.level(0, alone.Level[0]); l.Speed != alone.Speed || l.Level[0] < 40 {
		t.Errorf("paused: speed %v and level %v, alone %v and %v", l.Speed, l.Level[0], alone.Speed, alone.Level[0])
	}

	l = newLife(t, Limit{Capacity: 1, Rate: 1}) // reservations in the pause are late after it, and those behind it stand
	l.book(Units{1}, 0)
	l.book(Units{1}, 1)
	stands := l.book(Units{1}, 2)
	l.Pause(l.limits, 1500*time.Millisecond)
	if in, late := l.Due(stands.Place); in != 2*time.Second || late != 0 {
		t.Errorf("a reservation behind a pause is due in %v, %v late, want 2s", in, late)
	}

	l = newLife(t, month, Limit{Capacity: 5, Rate: 1})
	l.book(Units{3, 3}, 0)
	l.at(1)
	l.Pause(l.limits, time.Minute)
	l.at(3)
	l.Resume(l.limits)
	l.level(1, 0) // 3 s after the 3 units
	for range 3 {
		l.book(Units{1, 1}, 0)
	}
}
