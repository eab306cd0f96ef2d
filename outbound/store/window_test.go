package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// mostInAnyWindow returns the most places in any half-open interval of a length.
func mostInAnyWindow(places []time.Duration, window time.Duration) (most int) {
	first := 0
	for k, p := range places {
		for places[first] <= p-window {
			first++
		}
		most = max(most, k-first+1)
	}
	return most
}

// However far ahead reservations go, a window keeps few slots, and no interval has more than n.
func TestWindow_ManyReservationsTakeFewSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 0))
	limits := []Limit{moving(3, time.Second), {Capacity: 1, Rate: 2.5}}
	s := New(0, 2)
	var places []time.Duration
	var charges []Charge
	for range 3000 {
		var c Charge
		s.Fill(limits, &Units{1, 1}, &Units{1, 1}, farthest, &c)
		charges = append(charges, c)
		if r.IntN(4) == 0 { // undo the last, and more
			k := len(charges) - 1
			for ; k > 0 && r.IntN(3) > 0 && s.Undo(limits, &charges[k]); k-- {
			}
			charges = charges[:k+1]
		}
		if len(s.Parts[0].Slots) > maxSlots {
			t.Fatalf("%d slots", len(s.Parts[0].Slots))
		}
	}
	for i := range charges {
		places = append(places, charges[i].Place)
	}
	if most := mostInAnyWindow(places, time.Second); most > 3 {
		t.Errorf("%d in a window", most)
	}
	if s.Level[0] < float64(len(charges))-0.5 {
		t.Errorf("the window has %v units of %d", s.Level[0], len(charges))
	}
}

// What a call has not used of a window is free immediately, whichever call it was.
func TestWindow_ReturnedUnitsAreFreeImmediately(t *testing.T) {
	limits := []Limit{moving(4, time.Second)}
	for back := range 4 {
		s := New(0, len(limits))
		var charges [4]Charge
		for i := range charges {
			s.Advance(limits, time.Duration(i)*200*time.Millisecond)
			s.Fill(limits, &Units{1}, &Units{1}, 0, &charges[i])
		}
		s.Settle(limits, &charges[back], &Units{0.5})
		var c Charge
		_, _, first := s.Fill(limits, &Units{0.5}, &Units{0.5}, 0, &c)
		wait, _, second := s.Fill(limits, &Units{0.5}, &Units{0.5}, 0, &c)
		if !first || second || wait > 400*time.Millisecond {
			t.Errorf("call %d has settled to less: admitted %v and %v, wait %v", back, first, second, wait)
		}
	}
}

// opens checks that the key admits a call at a time, and none a millisecond earlier.
func (k *key) opens(at float64) {
	k.Helper()
	if r := k.book(at-0.001, 0, Units{1}); len(r.Charges) > 0 {
		k.Errorf("a call is booked before %v s", at)
	}
	if r := k.book(at, 0, Units{1}); len(r.Charges) == 0 {
		k.Errorf("no call is booked at %v s, wait %v", at, r.Wait)
	}
}

// Units that a settle adds to a fixed window count until a window after the settle.
func TestFixed_SettleThatAdds(t *testing.T) {
	k := newKey(t, fixedWindow(2, 10*time.Second))
	c := k.book(3600, 0, Units{1}).Charges[0]
	k.report(3605, Report{Kind: Settled, Charge: &c, Used: Units{2}})
	k.opens(3615)
}

// When the length of a full fixed window changes, it frees a window of the new length after its call.
func TestFixed_ChangeOfLengthMovesItsEnd(t *testing.T) {
	for _, to := range []time.Duration{4 * time.Second, 20 * time.Second} {
		k := newKey(t, named(fixedWindow(2, 10*time.Second)))
		k.book(3600, 0, Units{1}, Units{1})
		k.replace(3600, named(fixedWindow(2, to)))
		k.opens(3600 + to.Seconds())
	}
}

// An API's window ends up to 10 ms before the limit's. A call at the end of it could begin the
// API's next one.
func TestFixed_NoCallLeavesInItsLastMoments(t *testing.T) {
	const n, window = 2, 10*time.Second + spread
	for _, early := range []time.Duration{1, spread, 2 * spread} {
		k := newKey(t, fixedWindow(n, window))
		k.book(0, 0, Units{1})
		if r := k.book((window - early).Seconds(), 0, Units{1}); !r.Refused || r.Wait != early {
			t.Errorf("%v before the end: refused %v, wait %v", early, r.Refused, r.Wait)
		}
		if r := k.book(window.Seconds(), 0, Units{1}, Units{1}, Units{1}); len(r.Charges) != n {
			t.Errorf("%d leave in the next window, want %d", len(r.Charges), n)
		}
	}
}

// The first call of {2 per 1 s} is returned: the API's window begins with the second.
func TestFixed_ReturnedFirstCallMovesIt(t *testing.T) {
	k := newKey(t, fixedWindow(2, time.Second))
	first := k.book(0, 0, Units{1}).Charges[0]
	k.book(0.5, 0, Units{1})
	k.report(0.5, Report{Kind: Settled, Charge: &first})
	if r := k.book(1, 0, Units{1}, Units{1}); len(r.Charges) != 1 || r.Wait != time.Second {
		t.Errorf("%d calls of 2 are booked, wait %v; want 1 and 1s", len(r.Charges), r.Wait)
	}
}

// Each period begins empty, at its time.
func TestPeriod_BeginsEmpty(t *testing.T) {
	k := newKey(t, Limit{Kind: Hourly, Capacity: 2})
	k.book(7200, 0)
	for hour := range 3 {
		at := float64(7200+3600*hour) + 10
		if r := k.book(at, 0, Units{1}, Units{1}, Units{1}); len(r.Charges) != 2 || !r.Refused || r.Wait != 3591*time.Second || r.Limit != 0 {
			t.Errorf("hour %d: %d of 2 calls, wait %v for %d", hour, len(r.Charges), r.Wait, r.Limit)
		}
	}
}

// Within a second of the end no call leaves, and none is booked beyond it.
func TestPeriod_NoCallLeavesAroundItsEnd(t *testing.T) {
	k := newKey(t, Limit{Kind: Hourly, Capacity: 100}, Limit{Name: "pace", Capacity: 1, Rate: 1})
	for _, c := range []struct {
		at   float64
		wait time.Duration
		ok   bool
	}{
		{3598.9, 0, true},
		{3599, 2 * time.Second, false},
		{3600, time.Second, false},
		{3600.5, 500 * time.Millisecond, false},
		{3601, 0, true},
	} {
		r := k.book(c.at, 0, Units{1, 1})
		if ok := len(r.Charges) == 1; ok != c.ok || !ok && r.Wait != c.wait {
			t.Errorf("at %v: admitted %v, wait %v, want %v and %v", c.at, ok, r.Wait, c.ok, c.wait)
		}
	}
	k.book(7195, 0, Units{1, 1})
	r := k.book(7195, time.Minute, Units{1, 1}, Units{1, 1}, Units{1, 1}, Units{1, 1})
	if len(r.Charges) != 3 || r.Wait != 6*time.Second {
		t.Errorf("%d calls are reserved before the end, the next waits %v, want 3 and 6s", len(r.Charges), r.Wait)
	}
}

// A hold moves a reservation past the end. It is void, and the period gets its units back.
func TestPeriod_ReservationMovedOutIsVoid(t *testing.T) {
	k := newKey(t, Limit{Kind: Hourly, Capacity: 100}, Limit{Name: "pace", Capacity: 1, Rate: 1})
	k.book(39500, 0, Units{1, 1})
	c := k.book(39500, time.Minute, Units{1, 1}).Charges[0]
	if c.Void(time.Duration(39598.9e9)) || !c.Void(39599*time.Second) {
		t.Errorf("valid until %v", c.Until)
	}
	back := Op{Action: Book, Unused: []Charge{c}}
	if r := k.do(39501, back); r.State.Level[0] != 1 || r.State.Level[1] != 0 {
		t.Errorf("levels %v after the return", r.State.Level[:2])
	}
	k.book(39700, 0, Units{1, 1})
	back.Unused[0].Settled = false
	if r := k.do(39700, back); r.State.Level[0] != 1 {
		t.Errorf("level %v after a return to the period before", r.State.Level[0])
	}
}

// A clock that goes back over the begin of a period, as that of another server, opens it no second
// time. If that is by less than two clocks may differ, the period stays.
func TestPeriod_StepBackOverItsBegin(t *testing.T) {
	for _, back := range []float64{0.5, 1.9, 3, 3000} {
		k := newKey(t, Limit{Kind: Hourly, Capacity: 2})
		k.book(3610, 0, Units{1}, Units{1})
		k.book(3600-back, 0)
		if r := k.book(3615, 0, Units{1}); len(r.Charges) != 0 {
			t.Errorf("%v s back: a third call of 2 in an hour", back)
		}
		if stays := k.State.Parts[0].Begin == time.Hour; stays != (back < 2) {
			t.Errorf("%v s back: the period begins at %v", back, k.State.Parts[0].Begin)
		}
		k = newKey(t, Limit{Kind: Hourly, Capacity: 2}) // a step that goes back is kept if a call leaves in it
		n := len(k.book(36010, 0, Units{1}).Charges) + len(k.book(36000-back, 0, Units{1}).Charges)
		n += len(k.book(36015, 0, Units{1}, Units{1}).Charges)
		if n != 2 {
			t.Errorf("%v s back: %d calls of 2 in both hours", back, n)
		}
	}
}

// A step that says other periods than the store's does nothing.
func TestPeriod_OtherPeriodsAreUntimely(t *testing.T) {
	limits := []Limit{{Kind: Hourly, Capacity: 2}}
	for name, periods := range map[string][]Period{
		"none":           nil,
		"of yesterday":   {periodOf(0, 3600)},
		"of tomorrow":    {periodOf(90_000*time.Second, 3600)},
		"in no order":    {{7200, 7200, 10_800}},
		"of the last":    {{3600, 7200, 10_800}},
		"of the one now": {{7200, 10_800, 14_400}},
	} {
		var s Stored
		op := Op{Limits: limits, Action: Book, Costs: []Units{{1}}, Periods: periods}
		r := op.Apply(&s, 7300*time.Second)
		if want := name == "of the last" || name == "of the one now"; r.Untimely == want || (len(r.Charges) == 1) != want || r.State.Unix != 7300*time.Second {
			t.Errorf("%s: untimely %v, %d charges, at %v", name, r.Untimely, len(r.Charges), r.State.Unix)
		}
	}
}
