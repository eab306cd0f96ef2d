package store

import (
	"testing"
	"time"
)

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
