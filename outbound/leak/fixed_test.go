package leak

import (
	"math/rand/v2"
	"slices"
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
		"a slow-down": func(l *life, _ *Charge) { l.Speed = 0.5 },
		"the first is undone": func(l *life, first *Charge) {
			second := l.book(Units{1}, 0)
			l.Unbook(l.limits, second)
			l.log(&l.limits[0]).undo(&l.limits[0], first.Place, first.Before, 1)
		},
		"a worker with a longer window": func(l *life, _ *Charge) { l.log(&l.limits[0]).Longest = time.Minute },
		"a Resume":                      func(l *life, _ *Charge) { l.Resume(l.limits) },
		"a clock that is behind":        func(l *life, _ *Charge) { l.unsteady(l.limits) },
		"a window of another length": func(l *life, _ *Charge) {
			longer := []Limit{fixed(n, time.Minute), l.limits[1]}
			l.Change(l.limits, longer, []int{0, 1}, new(Units))
			l.Change(longer, l.limits, []int{0, 1}, new(Units))
			l.log(&l.limits[0]).Longest = l.limits[0].Window
		},
	} {
		l := newLife(t, fixed(n, 10*time.Second), Limit{Capacity: 1, Rate: 1})
		first := l.book(Units{1}, 0)
		l.at(1)
		l.book(Units{1}, 0)
		hide(l, first)
		l.at(9)
		l.book(Units{1}, 0)
		for now := 9.; l.Dial() < 10500*time.Millisecond; now += 0.1 {
			l.at(now)
		}
		if wait, _ := l.Wait(l.limits, &Units{n}); (wait == 0) != (name == "nothing") {
			t.Errorf("%s: a whole window waits %v after the first one's end", name, wait)
		}
		l.at(40)
		if wait, _ := l.Wait(l.limits, &Units{n}); wait > 0 {
			t.Errorf("%s: a whole window waits %v after a window without a call", name, wait)
		}
	}
}

// A hold of as long as the dial was behind brings it to real time, but not the calls that left late.
func TestNoHoldEndsAFixedWindow(t *testing.T) {
	l := newLife(t, fixed(4, 10*time.Second), Limit{Capacity: 1, Rate: 1})
	l.book(Units{1, 1}, 0)
	l.book(Units{0, 1}, 1) // so the dial stands
	l.Hold(l.limits, 3*time.Second, nil)
	l.at(10.6)
	l.book(Units{3}, 0) // by the dial in the first window, and the API's next one begins with it
	l.at(11)
	l.Hold(l.limits, 3*time.Second, nil)
	if real, _, ok := l.Fill(l.limits, &Units{4}, time.Minute, new(Charge)); !ok || real < 9600*time.Millisecond {
		t.Errorf("a whole window goes %v after the 3 of the last %v", real+400*time.Millisecond, ok)
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

// A booked call may be moved, one at the window's end may be in the next, and a clock that is behind
// hides real time: each makes the begin of the API's window unsure. So does a worker that took the limit
// for a moving one, and a level that came from another kind.
func TestWhatMayMoveTheBeginMakesItUnsure(t *testing.T) {
	limits := []Limit{fixed(4, 10*time.Second), {Capacity: 1, Rate: 1}}
	for name, c := range map[string]struct {
		sure bool
		do   func(l *life)
	}{
		"a call at once":       {true, func(l *life) { l.book(Units{1, 1}, 0) }},
		"a booked call":        {false, func(l *life) { l.book(Units{0, 1}, 0); l.book(Units{1, 1}, 1) }},
		"a call at the end":    {false, func(l *life) { l.book(Units{1}, 0); l.at(9.985); l.book(Units{1}, 0) }},
		"a call before that":   {true, func(l *life) { l.book(Units{1}, 0); l.at(9.975); l.book(Units{1}, 0) }},
		"a moving one between": {false, func(l *life) { l.book(Units{1}, 0); g := l.log(&limits[0]); g.become(Moving); g.become(Fixed) }},
		"a hold that drips": {false, func(l *life) {
			l.book(Units{1}, 0)
			l.at(9)
			l.limits = l.limits[:1]
			l.Hold(l.limits, time.Second, nil)
			l.at(10)
		}},
		"a level": {false, func(l *life) { l.log(&limits[0]).raise(&limits[0], 2, l.Dial(), l.Dial()) }},
	} {
		l := newLife(t, limits...)
		if c.do(l); (l.log(&limits[0]).Skip != unsure) != c.sure {
			t.Errorf("%s: sure %v, want %v", name, !c.sure, c.sure)
		}
	}
	var s Stored
	op := Op{Limits: limits, Action: Book, Costs: []Units{{1}}}
	op.Apply(&s, time.Hour)
	op.Apply(&s, time.Hour-20*time.Millisecond)
	if s.State.log(&limits[0]).Skip != unsure {
		t.Error("a clock that is behind hides nothing")
	}
}

// A late report comes between the calls, wherever the last of them is, and no two entries have one place.
func TestALateReportCountsWhereItsCallWas(t *testing.T) {
	l := moving(100, time.Minute)
	s := New(0)
	g := s.log(&l)
	g.fill(&l, 1, 20*time.Second, &s)
	g.fill(&l, 4, 30*time.Second, &s)
	g.settle(&l, 25*time.Second, 1, 3, true, 25*time.Second) // a call of which the log knows nothing
	g.settle(&l, 30*time.Second, 4, 1, true, 30*time.Second)
	want := []Entry{{20 * time.Second, 20 * time.Second, 1, 0}, {25 * time.Second, 25 * time.Second, 2, 0}, {30 * time.Second, 30 * time.Second, 1, 0}}
	if !slices.Equal(g.Entries, want) {
		t.Errorf("%+v", g.Entries)
	}
	if g.put(30*time.Second, 1, 0); len(g.Entries) != 3 || g.Entries[2].Units != 2 {
		t.Errorf("%+v", g.Entries)
	}
	g.Entries[2].Aged = 8 * time.Second // with the call of 25 s, if the log knew it
	if g.put(26*time.Second, 1, 0); g.Entries[2].end(&l) != g.Entries[3].end(&l) || g.sum != 6 {
		t.Errorf("%+v", g.Entries)
	}
	if g.put(30*time.Second, 1, 0); len(g.Entries) != 5 || g.Entries[4].Aged != 0 {
		t.Errorf("what has not aged is with what has: %+v", g.Entries)
	}
}

// A call that is booked between marks of a hold, because bookings that were later have been given back,
// counts from its place, and gives all of it back.
func TestACallBetweenMarksComesBack(t *testing.T) {
	l := newLife(t, moving(4, 3*time.Second))
	l.Hold(l.limits, time.Second, nil)
	a := l.book(Units{2}, 2.03125)
	b := l.book(Units{2}, 4)
	l.at(1)
	l.Hold(l.limits, 2*time.Second, nil) // its marks are up to half of the capacity, until the last booking
	l.Unbook(l.limits, b)
	l.Unbook(l.limits, a)
	g := l.log(&l.limits[0])
	marks := len(g.Entries)
	c := l.book(Units{1}, 2)
	if last := g.Entries[len(g.Entries)-1]; len(g.Entries) != marks+1 || !last.marks() || g.find(c.Place) < 0 {
		t.Fatalf("%d entries of %d, the last is %+v", len(g.Entries), marks+1, last)
	}
	before := g.sum
	l.Settle(l.limits, c, &Units{})
	if back := before - g.sum; back < 1-1e-9 {
		t.Errorf("%v of 1 came back", back)
	}
}

// A window that is over now is so no more when a slow dial has fallen behind: who has to wait for another limit
// until then, and is not booked now, is told so.
func TestAWindowThatIsOverIsNotOverLaterOnASlowDial(t *testing.T) {
	l := newLife(t, fixed(3, 2*time.Second), moving(2, 500*time.Millisecond))
	l.book(Units{2}, 0)
	l.at(1)
	l.book(Units{1, 0}, 0)
	l.Speed = 0.9999
	l.at(2.00001)
	l.book(Units{0, 2}, 0)
	l.Speed = 0.9
	told, _, ok := l.Fill(l.limits, &Units{3, 1}, 0, new(Charge))
	if ok || told < 900*time.Millisecond {
		t.Fatalf("told to come back after %v", told)
	}
	real, _, ok := l.Fill(l.limits, &Units{3, 1}, told, new(Charge))
	if !ok || real > 600*time.Millisecond {
		t.Errorf("booked now it goes after %v, %v", real, ok)
	}
}

// A store may forget a key after Expire. A fixed window comes back whole when it is over, but until its calls are a
// window ago a worker with a moving one counts them, and the first of them may be given back.
func TestAFixedWindowIsKeptUntilItsCallsAreAWindowAgo(t *testing.T) {
	limits, others := []Limit{named(fixed(2, time.Second))}, []Limit{named(moving(2, time.Second))}
	for name, then := range map[string]Op{
		"a worker with a moving window": {Limits: others},
		"the first is given back":       {Limits: limits, Reports: []Report{{Kind: Settled}}},
	} {
		var s Stored
		var until time.Duration
		step := func(op Op, now time.Duration) Reply {
			if op.Action, op.Costs = Book, []Units{{1}}; until < now {
				s = Stored{}
			}
			r := op.Apply(&s, now)
			until = now + r.Expire
			return r
		}
		first := step(Op{Limits: limits}, 0)
		step(Op{Limits: limits}, 900*time.Millisecond)
		if then.Reports != nil {
			then.Reports[0].Charge = &first.Charges[0]
		}
		step(then, 1200*time.Millisecond)
		then.Reports = nil
		if r := step(then, 1300*time.Millisecond); !r.Refused || r.Wait != 600*time.Millisecond {
			t.Errorf("%s: the third in a window: %+v", name, r)
		}
	}
}
