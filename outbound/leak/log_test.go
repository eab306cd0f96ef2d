package leak

import (
	"testing"
	"time"
)

// A call that has cost so much that the sum of a window loses all others takes none of them
// along when it ends, or is settled to nothing.
func TestAHugeSettleHidesNoOtherUnits(t *testing.T) {
	for _, back := range []bool{false, true} {
		l := []Limit{moving(5, time.Second)}
		s := New(0)
		var a, c Charge
		s.Fill(l, &Units{1}, 0, &a)
		s.Advance(l, 500*time.Millisecond)
		s.Fill(l, &Units{4}, 0, &c)
		s.Settle(l, &a, &Units{1e17})
		if back {
			a.Settled = false
			s.Settle(l, &a, &Units{})
		} else {
			s.Advance(l, time.Second)
		}
		s.Fill(l, &Units{1}, 0, &c)
		if wait, _, ok := s.Fill(l, &Units{1}, 0, &c); ok || wait > time.Second {
			t.Errorf("settled to nothing %v: the sixth of 5 goes after %v", back, wait)
		}
	}
}

// However much has gone through a window, a booking is not the last one if another worker has
// booked behind it, even the least cost.
func TestABookingIsTheLastOneOnlyIfNobodyHasBookedSince(t *testing.T) {
	window, other := []Limit{named(moving(10, time.Second))}, []Limit{{Name: "b", Capacity: 1, Rate: 1}}
	for _, total := range []float64{10, 1e3, 1e9, 1e18} {
		for _, rival := range [][]Limit{other, window} {
			var s Stored
			book := func(l []Limit, n float64) Charge {
				return (&Op{Limits: l, Action: Book, Costs: []Units{{n}}, Wait: time.Hour}).Apply(&s, time.Second/2).Charges[0]
			}
			book(window, 10)
			(*s.State.Logs)[0].Total = total
			c := book(window, 5)
			d := book(rival, rival[0].Takes(1e-12))
			(&Op{Limits: window, Action: Book, Back: []Charge{c}}).Apply(&s, time.Second/2)
			if s.State.Last < d.Place-s.State.Dial() {
				t.Errorf("after %v units a booking of %v is overtaken", total, rival[0])
			}
		}
		var s Stored
		op := &Op{Limits: window, Action: Book, Costs: []Units{{1.1}}, Wait: time.Hour}
		op.Apply(&s, 0)
		(*s.State.Logs)[0].Total = total
		var c []Charge
		for range 5 {
			c = append(c, op.Apply(&s, 0).Charges...)
		}
		for i := len(c) - 1; i >= 0 && total < 1e18; i-- {
			if !s.State.Unbook(window, &c[i]) {
				t.Errorf("after %v units the last booking but %d is not undone", total, len(c)-1-i)
			}
		}
	}
}

// A log keeps entries no longer than it has to, once the limits are set for all.
func TestALogForgetsALongerWindowWithTheLimit(t *testing.T) {
	var s Stored
	hour, second := []Limit{named(moving(5000, time.Hour))}, []Limit{named(moving(100, time.Second))}
	(&Op{Limits: hour, Action: Book, Costs: []Units{{1}}}).Apply(&s, 0)
	(&Op{Limits: hour, Action: Replace, Replacement: second}).Apply(&s, 0)
	calls, now := 0, time.Duration(0)
	for now < 90*time.Second {
		r := (&Op{Limits: second, Stamp: s.Stamp, Action: Book, Costs: []Units{{1}}}).Apply(&s, now)
		now += 5*time.Millisecond + r.Wait
		calls += len(r.Charges)
	}
	if share := float64(calls) / (100 * now.Seconds()); share < 0.95 {
		t.Errorf("%.2f of the quota is used", share)
	}
}

// Numbers that overflow the law's sums are garbage.
func TestALogThatWouldOverflowIsGarbage(t *testing.T) {
	for name, spoil := range map[string]func(*Stored){
		"longest": func(s *Stored) { (*s.State.Logs)[0].Longest = 1<<63 - 1 },
		"ret":     func(s *Stored) { s.State.Level[0].Ret = 9.5e18 },
		"top":     func(s *Stored) { s.State.Level[0].Top = 9.5e18 },
	} {
		var s Stored
		op := Op{Limits: []Limit{moving(2, time.Second)}, Action: Book, Costs: []Units{{1}}}
		op.Apply(&s, time.Second)
		op.Apply(&s, 2500*time.Millisecond)
		spoil(&s)
		b, _ := s.MarshalBinary()
		_ = s.UnmarshalBinary(b) // its error is of what UnmarshalBinary finds by itself
		if r := op.Apply(&s, 2600*time.Millisecond); !r.Garbage || !r.Refused || r.Expire > time.Minute {
			t.Errorf("%s: garbage %v, refused %v, kept for %v", name, r.Garbage, r.Refused, r.Expire)
		}
	}
}

// What is booked for later has not gone since a call, and a change makes it void.
func TestWhatALogHasBookedForLater(t *testing.T) {
	l := []Limit{moving(2, 10*time.Second)}
	s := New(0)
	var first, c Charge
	s.Fill(l, &Units{1}, 0, &first)
	s.Fill(l, &Units{1}, 0, &c)
	s.Fill(l, &Units{2}, farthest, &c)
	if since := s.Since(l, &first, 0); since < 1 || since > 1.1 {
		t.Errorf("%v units have gone since the first call, want 1", since)
	}
	if !s.Void(l) || (*s.Logs)[0].sum != 2 {
		t.Errorf("%v units after the change, want 2", (*s.Logs)[0].sum)
	}
}

// A hold puts marks between the calls of a full log, and calls that follow leave no room for all. Marks and calls
// stay apart: a Resume takes all marks out, and the calls count on.
func TestAResumeTakesEachMarkOutOfAFullLog(t *testing.T) {
	const capacity = 1000
	l := newLife(t, moving(capacity, 64*time.Second))
	calls := 0.
	for i := range 63 {
		l.at(1.01 * float64(i))
		l.book(Units{1}, 0)
		calls++
	}
	l.Hold(l.limits, time.Second, nil)
	l.at(63.5)
	g := l.log(&l.limits[0])
	for i := range 70 { // reports of calls that the log does not know
		g.put(sec(0.91*float64(i)), 1, 0)
		calls++
	}
	marks := 0.
	for i := range g.Entries {
		if e := &g.Entries[i]; e.marks() {
			marks += e.Units
		}
	}
	if len(g.Entries) < maxEntries || marks < capacity/2 {
		t.Fatalf("%d entries, %v of marks", len(g.Entries), marks)
	}
	t.Logf("%d entries, %v of marks, %v of calls", len(g.Entries), marks, calls)
	l.Resume(l.limits)
	if g.sum > calls || g.sum < calls-10 {
		t.Errorf("%v units after a Resume, want those of the calls, %v at most", g.sum, calls)
	}
}
