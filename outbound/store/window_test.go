package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// exactLog is a window that remembers each call.
type exactLog struct {
	n      int
	window time.Duration
	places []time.Duration
}

func (e *exactLog) book(now time.Duration) time.Duration {
	p := now
	if k := len(e.places); k > 0 {
		p = max(p, e.places[k-1])
		if k >= e.n {
			p = max(p, e.places[k-e.n]+e.window)
		}
	}
	e.places = append(e.places, p)
	return p
}

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

// Calls that come at random wait little longer than with a log of each call.
func TestWindow_WaitsLittleLongerThanAnExactLog(t *testing.T) {
	const n, window, calls = 1000, time.Minute + 10*time.Millisecond, 60_000
	for _, share := range []float64{0.5, 0.9, 0.95} {
		r := rand.New(rand.NewPCG(11, 0))
		limits := []Limit{moving(n, window)}
		s, exact := New(0, 1), exactLog{n: n, window: window}
		var now, waited, least time.Duration
		var places []time.Duration
		for range calls {
			now += time.Duration(r.ExpFloat64() * float64(window) / (n * share))
			s.Advance(limits, now)
			var c Charge
			wait, _, ok := s.Fill(limits, &Units{1}, farthest, &c)
			if !ok {
				t.Fatalf("refused for %v", wait)
			}
			waited += wait
			places = append(places, now+wait)
			least += exact.book(now) - now
		}
		mean, shortest := waited/calls, least/calls
		t.Logf("%v of %d per %v: mean wait %v, with an exact log %v", share, n, window, mean, shortest)
		if mean > 2*shortest+window/parts {
			t.Errorf("%v of the quota: mean wait %v, with an exact log %v", share, mean, shortest)
		}
		if most := mostInAnyWindow(places, window); most > n {
			t.Errorf("%v of the quota: %d calls in a window", share, most)
		}
	}
}

// Calls that come faster than they may go use all of the quota.
func TestWindow_IsUsedWholly(t *testing.T) {
	const n, windows = 1000, 50
	for _, kind := range []Limit{moving(n, time.Minute)} {
		for _, gap := range []time.Duration{0, 10 * time.Millisecond, 59 * time.Millisecond} {
			limits := []Limit{kind}
			s := New(0, len(limits))
			var now time.Duration
			places := make([]time.Duration, 0, windows*n)
			for range windows * n {
				s.Advance(limits, now)
				var c Charge
				wait, _, _ := s.Fill(limits, &Units{1}, farthest, &c)
				places = append(places, now+wait)
				now += gap
			}
			full := places[len(places)-1] - places[2*n] // the first windows begin with the calls that come
			if use := float64(windows-2) / full.Minutes(); use < 0.995 {
				t.Errorf("%v, a call each %v: %.4f of the quota is used", kind.Name, gap, use)
			}
			if most := mostInAnyWindow(places, time.Minute); kind.Kind == Window && most > n {
				t.Errorf("%v, a call each %v: %d in a window", kind.Name, gap, most)
			}
		}
	}
}

// As many as there is room for go at once, then none for the window, and then as many again.
func TestWindow_AllLeaveImmediately(t *testing.T) {
	for _, l := range []Limit{moving(5, time.Second), fixedWindow(5, time.Second)} {
		limits := []Limit{l}
		s := New(0, len(limits))
		for _, at := range []time.Duration{0, time.Second, 3 * time.Second} {
			s.Advance(limits, at)
			for k := range 6 {
				var c Charge
				wait, which, ok := s.Fill(limits, &Units{1}, 0, &c)
				if ok != (k < 5) || !ok && (wait != time.Second || which != 0) {
					t.Errorf("%s at %v: call %d: admitted %v, wait %v for %d", l.Name, at, k, ok, wait, which)
				}
			}
		}
	}
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
		s.Fill(limits, &Units{1, 1}, farthest, &c)
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

// What comes back of any call makes room at once.
func TestWindow_ReturnedUnitsAreFreeImmediately(t *testing.T) {
	limits := []Limit{moving(4, time.Second)}
	for back := range 4 {
		s := New(0, len(limits))
		var charges [4]Charge
		for i := range charges {
			s.Advance(limits, time.Duration(i)*200*time.Millisecond)
			s.Fill(limits, &Units{1}, 0, &charges[i])
		}
		s.Settle(limits, &charges[back], &Units{0.5})
		var c Charge
		if _, _, ok := s.Fill(limits, &Units{0.5}, 0, &c); !ok {
			t.Errorf("call %d has settled to less, and there is no room", back)
		}
		if wait, _, ok := s.Fill(limits, &Units{0.5}, 0, &c); ok || wait > 400*time.Millisecond {
			t.Errorf("call %d has settled to less: then admitted %v, wait %v", back, ok, wait)
		}
	}
}

// In a hold the API's window goes on: what had left when the hold began counts no longer for it.
func TestWindow_HoldMakesItNoLonger(t *testing.T) {
	limits := []Limit{{Capacity: 1, Rate: 10}, moving(3, 10*time.Second)}
	limits[0].Name = "pace"
	s := New(0, 2)
	for at := range time.Duration(3) {
		s.Advance(limits, at*200*time.Millisecond)
		var c Charge
		if _, _, ok := s.Fill(limits, &Units{1, 1}, 0, &c); !ok {
			t.Fatal("refused")
		}
	}
	var booked Charge
	s.Fill(limits, &Units{1, 0}, time.Hour, &booked)
	s.Advance(limits, time.Second)
	s.Hold(limits, 12*time.Second, nil, true)
	s.Advance(limits, 13*time.Second)
	if s.Level[1] != 0 {
		t.Errorf("%v units count after a hold that is longer than the window", s.Level[1])
	}
}

// An API's window ends up to 10 ms before the limit's. A call at the end of it could begin the
// API's next one.
func TestFixed_NoCallLeavesInItsLastMoments(t *testing.T) {
	const n, window = 2, 10*time.Second + spread
	op := Op{Limits: []Limit{{Kind: Fixed, Capacity: n, Rate: n / window.Seconds(), Window: window}}, Action: Book, Costs: []Units{{1}}}
	for _, early := range []time.Duration{1, spread, 2 * spread} {
		var s Stored
		op.Apply(&s, 0)
		if r := op.Apply(&s, window-early); !r.Refused || r.Wait != early {
			t.Errorf("%v before the end: refused %v, wait %v", early, r.Refused, r.Wait)
		}
		in := 0
		for range n + 1 {
			in += len(op.Apply(&s, window).Charges)
		}
		if in != n {
			t.Errorf("%d leave in the next window, want %d", in, n)
		}
	}
}

// The first call of {2 per 1 s} is returned: the API's window begins with the second.
func TestFixed_ReturnedFirstCallMovesIt(t *testing.T) {
	limits := []Limit{fixedWindow(2, time.Second)}
	s := New(0, 1)
	var first, c Charge
	s.Fill(limits, &Units{1}, 0, &first)
	s.Advance(limits, 500*time.Millisecond)
	s.Fill(limits, &Units{1}, 0, &c)
	s.Settle(limits, &first, &Units{})
	s.Advance(limits, time.Second)
	if _, _, ok := s.Fill(limits, &Units{1}, 0, &c); !ok {
		t.Error("there is capacity for one call")
	}
	if wait, _, ok := s.Fill(limits, &Units{1}, 0, &c); ok || wait != time.Second {
		t.Errorf("a third call in a second: admitted %v, wait %v", ok, wait)
	}
}

// A Resume ends a hold and refills nothing: a full window frees its units a window after its calls, and
// not later for the hold.
func TestWindow_ResumeDelaysNoCall(t *testing.T) {
	limits := []Limit{moving(2, 10*time.Second)}
	var s Stored
	now := time.Hour
	full := Op{Limits: limits, Action: Book, Costs: []Units{{1}, {1}}}
	if r := full.Apply(&s, now); len(r.Charges) != 2 {
		t.Fatalf("%d booked", len(r.Charges))
	}
	hold := Op{Limits: limits, Number: s.Number, Reports: []Report{{Kind: Held, Wait: time.Hour}}}
	hold.Apply(&s, now+5*time.Second)
	resume := Op{Limits: limits, Number: s.Number, Action: Resume}
	resume.Apply(&s, now+6*time.Second)
	next := Op{Limits: limits, Number: s.Number, Action: Book, Costs: []Units{{1}}}
	if r := next.Apply(&s, now+6*time.Second); len(r.Charges) != 0 || r.Wait > 5*time.Second {
		t.Errorf("%d booked, wait %v, want at most the rest of the window", len(r.Charges), r.Wait)
	}
	if r := next.Apply(&s, now+11*time.Second); len(r.Charges) != 1 {
		t.Errorf("no call is booked 11 s after the first, wait %v", r.Wait)
	}
}
