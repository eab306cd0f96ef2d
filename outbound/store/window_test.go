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
			wait, _, ok := s.Fill(limits, &Units{1}, &Units{1}, farthest, &c)
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
				wait, _, _ := s.Fill(limits, &Units{1}, &Units{1}, farthest, &c)
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
