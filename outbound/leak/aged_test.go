package leak

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// heldFor is a key whose window of 100 an hour has 100, when the API has all calls wait for 55
// minutes, 5 minutes later.
func heldFor(t *testing.T, used float64, limits ...Limit) *life {
	l := newLife(t, limits...)
	n := Units{used}
	if len(limits) > 1 {
		n[1] = 1
	}
	l.book(n, 0)
	l.at(300)
	return l
}

// A window is over when it is over for the API, whatever has been booked when the hold began.
func TestAHoldMakesNoWindowLonger(t *testing.T) {
	const left = 55 * time.Minute
	hour, ten := moving(100, time.Hour), Limit{Capacity: 1, Rate: 10}
	for _, hour := range []Limit{hour, fixed(100, time.Hour)} {
		l := heldFor(t, 100, hour, ten)
		c := l.book(Units{1, 1}, 3300) // the window is full, so the dial goes on to this place
		l.Hold(l.limits, left, nil)
		l.at(3600)
		if in, late := l.Due(c.Place); in > 0 || late > 0 {
			t.Errorf("kind %d: the booked call goes %v after the hold, or %v before", hour.Kind, in, late)
		}
		l.at(3600.2)
		l.book(Units{50, 1}, 0)
		l.book(Units{49, 1}, 0.1)
	}
	l := heldFor(t, 60, hour, ten)
	l.book(Units{1, 1}, 0)
	l.book(Units{1, 1}, 0.1) // so the dial stands
	l.Hold(l.limits, left, nil)
	l.at(3600.1)
	l.book(Units{58, 1}, 0.1)
	l.book(Units{40, 1}, 0.2)
	l.at(3605)
	if entries := l.log(&hour).Entries; entries[0].First < 300*time.Second {
		t.Errorf("entries %v", entries)
	}

	l = heldFor(t, 100, hour) // the window is the shortest limit
	l.book(Units{1}, 3300)
	l.Hold(l.limits, left, nil)
	l.at(3600.25)
	l.book(Units{1}, 56.000001) // nobody knows what the API counts, so calls drip, a part of the window after the other
}

// The dial goes on to no place that a hold could let two calls use.
func TestInAHoldTheDialPassesNoBookedPlace(t *testing.T) {
	ten, window := Limit{Name: "ten", Capacity: 1, Rate: 10}, named(moving(50, 5*time.Second)) // 10/s is more than a part apart
	change := func(l *life, to Limit, was int) {
		l.Change(l.limits, []Limit{ten, to}, []int{0, was}, &Units{0, 1})
		l.limits = []Limit{ten, to}
	}
	one := Units{1, 1}
	for name, c := range map[string]struct {
		limits []Limit
		book   func(l *life) (first *Charge)
	}{
		"a call beside the window": {[]Limit{ten, window}, func(l *life) *Charge {
			first := l.book(Units{1, 0}, 0.1)
			l.book(one, 0.2)
			return first
		}},
		"a new window": {[]Limit{ten}, func(l *life) *Charge {
			first := l.book(one, 0.1)
			l.book(one, 0.2)
			change(l, window, -1)
			return first
		}},
		"a limit becomes a window": {[]Limit{ten, named(Limit{Capacity: 50, Rate: 1})}, func(l *life) *Charge {
			first := l.book(one, 0.1)
			l.book(one, 0.2)
			change(l, window, 1)
			return first
		}},
		"another worker's call": {[]Limit{ten, window}, func(l *life) *Charge {
			both := l.limits
			l.limits = both[:1]
			first := l.book(one, 0.1)
			l.limits = both
			l.Turn(both)
			l.book(one, 0.2)
			return first
		}},
		"a call that takes less": {[]Limit{ten, window}, func(l *life) *Charge {
			first := l.book(one, 0.1)
			l.book(one, 0.2)
			l.Settle(l.limits, first, &Units{1, 0})
			return first
		}},
	} {
		l := newLife(t, c.limits...)
		l.book(one, 0)
		first := c.book(l)
		l.at(0.05)
		l.Hold(l.limits, time.Hour, nil)
		if l.Dial() > first.Place {
			t.Errorf("%s: the dial goes on to %v, and a call is booked for %v", name, l.Dial(), first.Place)
		}
	}
}

// A place does not become due sooner by a hold: it may be in a calendar's next period.
func TestAHoldBringsNoBookedPlaceNearer(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 10}, moving(1, time.Minute))
	l.book(Units{1, 1}, 0)
	l.at(1)
	var c Charge
	l.Fill(l.limits, &Units{1, 1}, time.Hour, &c)
	l.Speed = 0.5
	was, _ := l.Due(c.Place)
	l.Hold(l.limits, time.Minute, nil)
	if in, _ := l.Due(c.Place); in < was {
		t.Errorf("due after %v, and with a hold after %v", was, in)
	}
}

// Each call's units come back, the first one's as well. If that has, nobody knows when the API's
// window began.
func TestAFixedWindowsReturnsAreWhole(t *testing.T) {
	limits := []Limit{fixed(4, time.Second)}
	for first := range 4 {
		s := New(0)
		var charges [4]Charge
		for i := range charges {
			s.Advance(limits, time.Duration(i)*200*time.Millisecond)
			s.Fill(limits, &Units{1}, 0, &charges[i])
		}
		for _, i := range []int{first, (first + 1) % 4, (first + 2) % 4} {
			s.Settle(limits, &charges[i], &Units{})
		}
		if level := s.Level[0].Level; level != 1 {
			t.Errorf("calls %d to %d of 4 have come back, and %v are there", first, first+2, level)
		}
		s.Advance(limits, time.Second)
		if wait, _ := s.Wait(limits, &Units{4}); (wait == 0) != (first == 1) {
			t.Errorf("from call %d on: 4 go %v after the first window's end", first, wait)
		}
	}
}

// A log of too many entries counts no less, and finds every place.
func TestMergedEntriesCountAsLongAsTheyDid(t *testing.T) {
	merged := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(31, seed))
		limit := moving(10, time.Minute)
		g := Log{Kind: limit.Kind, Longest: limit.Window}
		aged, at := time.Hour, time.Duration(0)
		for range maxEntries + 10 {
			at += time.Duration(r.Int64N(int64(time.Second)))
			if r.IntN(20) == 0 {
				aged -= time.Duration(r.Int64N(int64(aged)))
			}
			e := Entry{First: at, Last: at, Units: 1, Aged: aged}
			switch r.IntN(6) {
			case 0:
				e.Last += 300 * time.Millisecond
				at = e.Last
			case 1: // a hold has put it in
				e = marker(at-aged, 1)
			}
			g.Entries = append(g.Entries, e)
		}
		was := slices.Clone(g.Entries)
		for len(g.Entries) > maxEntries {
			g.merge()
			merged++
		}
		if g.count(); g.sum != float64(len(was)) || !g.sound() {
			t.Fatalf("seed %d: %v units of %d, in %v", seed, g.sum, len(was), g.Entries)
		}
		for i := range was {
			e := &was[i]
			sum := 0.
			for k := range g.Entries {
				if f := &g.Entries[k]; f.end(&limit) >= e.end(&limit) {
					sum += f.Units
				}
			}
			until := 0.
			for k := range was {
				if was[k].end(&limit) >= e.end(&limit) {
					until += was[k].Units
				}
			}
			if k := g.find(e.Last); sum < until || !e.marks() && (k < 0 || g.Entries[k].end(&limit) < e.end(&limit)) {
				t.Fatalf("seed %d: %v are left of %v when %v ends, and it is in entry %d", seed, sum, until, *e, k)
			}
		}
	}
	if merged < 300*10 {
		t.Errorf("%d were merged", merged)
	}
}

// A hold that lets the units of its own call run out passes places that are booked beside the window. The
// next hold does not take their calls for gone, so it stops there.
func TestAHoldKnowsThatTheDialHasPassedABooking(t *testing.T) {
	l := newLife(t, moving(3, 2*time.Second), Limit{Capacity: 3, Rate: 1})
	c := l.book(Units{2, 1}, 0)
	l.Hold(l.limits, sec(0.5), c)
	l.book(Units{0, 1}, 0.5)
	l.Hold(l.limits, time.Second, c)
	passed := l.Dial()
	l.Hold(l.limits, 2*time.Second, c)
	if l.Dial() != passed || l.Level[1].Level < 1 {
		t.Errorf("the dial went on from %v to %v, and the level is %v with a call that has not gone", passed, l.Dial(), l.Level[1].Level)
	}
}

// A Resume in a hold sets the dial back to the last call that has aged. The next one goes at that place, and
// counts for a whole window all the same.
func TestNoCallJoinsAnEntryThatHasAged(t *testing.T) {
	l := newLife(t, moving(2, 12*time.Second), Limit{Capacity: 1, Rate: 0.2})
	l.book(Units{1, 1}, 0)
	l.book(Units{0, 1}, 5)
	l.at(0.2)
	l.Hold(l.limits, 20*time.Second, nil)
	l.at(10)
	l.Resume(l.limits)
	g := l.log(&l.limits[0])
	if len(g.Entries) != 1 || g.Entries[0].Last != l.Dial() || g.Entries[0].Aged == 0 {
		t.Fatalf("at %v: %+v", l.Dial(), g.Entries)
	}
	l.book(Units{1}, 0)
	l.at(12)
	if wait, _ := l.Wait(l.limits, &Units{2}); wait != sec(10) {
		t.Errorf("two calls can go %v after the first has ended, want 10 s", wait)
	}
}
