package leak

import (
	"math/rand/v2"
	"testing"
	"time"
)

// All of a fixed window comes back when the API's window ends, however late its calls went.
func TestAllOfAFixedWindowComesBackAtItsEnd(t *testing.T) {
	const n = 10
	limits := []Limit{fixed(n, time.Minute)}
	s := New(0)
	var c Charge
	at := func(now time.Duration, calls int) (went int) {
		s.Advance(limits, now)
		for range calls {
			if _, _, ok := s.Fill(limits, &Units{1}, 0, &c); ok {
				went++
			}
		}
		return went
	}
	for _, now := range []time.Duration{0, 2 * time.Minute} { // after a window without a call one begins anew
		at(now, 1)
		at(now+30*time.Second, 1)
		at(now+time.Minute-2*spread-1, n-2)
		if got := at(now+time.Minute-1, n); got != 0 {
			t.Errorf("%d too many in a window", got)
		}
		if got := at(now+time.Minute, n+1); got != n {
			t.Errorf("%d at the end of a window, want %d", got, n)
		}
		if got := at(now+2*time.Minute-1, 1); got != 0 {
			t.Error("one too many in the next window")
		}
	}
}

// Whatever hides when the API's window began makes a fixed window one that moves, and no more.
func TestAFixedWindowOfWhichNobodyKnowsTheBeginMoves(t *testing.T) {
	const n = 4
	for name, hide := range map[string]func(l *life, first *Charge){
		"nothing":               func(*life, *Charge) {},
		"the first is returned": func(l *life, first *Charge) { l.Settle(l.limits, first, &Units{}) },
		"a hold with a booking": func(l *life, _ *Charge) {
			l.book(Units{0, 1}, 0)
			l.book(Units{0, 1}, 1)
			l.Hold(l.limits, time.Second, nil)
		},
		"a slow-down":            func(l *life, _ *Charge) { l.Speed = 0.5 },
		"a Resume":               func(l *life, _ *Charge) { l.Resume(l.limits) },
		"a clock that is behind": func(l *life, _ *Charge) { l.unsteady(l.limits) },
	} {
		l := newLife(t, fixed(n, 10*time.Second), Limit{Capacity: 1, Rate: 1})
		first := l.book(Units{1}, 0)
		l.at(1)
		l.book(Units{1}, 0)
		hide(l, first)
		l.at(9)
		l.book(Units{1}, 0)
		l.at(10.5)
		if wait, _ := l.Wait(l.limits, &Units{n}); (wait == 0) != (name == "nothing") {
			t.Errorf("%s: a whole window waits %v after the first one's end", name, wait)
		}
		l.at(40)
		if wait, _ := l.Wait(l.limits, &Units{n}); wait > 0 {
			t.Errorf("%s: a whole window waits %v after a window without a call", name, wait)
		}
	}
}

// Calls at random wait no longer than for a window that moves.
func TestAFixedWindowWaitsNoLongerThanOneThatMoves(t *testing.T) {
	const n, window, calls = 200, time.Minute + spread, 20_000
	for _, share := range []float64{0.5, 0.95} {
		var mean [2]time.Duration
		for k, limit := range []Limit{moving(n, window), fixed(n, window)} {
			r := rand.New(rand.NewPCG(12, 0))
			s, limits := New(0), []Limit{limit}
			var now, waited time.Duration
			for range calls {
				now += time.Duration(r.ExpFloat64() * float64(window) / (n * share))
				s.Advance(limits, now)
				var c Charge
				wait, _, ok := s.Fill(limits, &Units{1}, farthest, &c)
				if !ok {
					t.Fatalf("refused for %v", wait)
				}
				waited += wait
			}
			mean[k] = waited / calls
		}
		t.Logf("at %v: %v, and %v where it moves", share, mean[1], mean[0])
		if mean[1] > mean[0]+mean[0]/20 {
			t.Errorf("at %v: %v, and %v where it moves", share, mean[1], mean[0])
		}
	}
}
