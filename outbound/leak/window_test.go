package leak

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
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
func TestAWindowWaitsLittleLongerThanAnExactLog(t *testing.T) {
	const n, window, calls = 1000, time.Minute + 10*time.Millisecond, 60_000
	for _, share := range []float64{0.5, 0.9, 0.95} {
		r := rand.New(rand.NewPCG(11, 0))
		limits := []Limit{moving(n, window)}
		s, exact := New(0), exactLog{n: n, window: window}
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
func TestAWindowIsUsedUp(t *testing.T) {
	const n, windows = 1000, 50
	for _, kind := range []Limit{moving(n, time.Minute), fixed(n, time.Minute)} {
		for _, gap := range []time.Duration{0, 10 * time.Millisecond, 59 * time.Millisecond} {
			limits := []Limit{kind}
			s := New(0)
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
			if most := mostInAnyWindow(places, time.Minute); kind.Kind == Moving && most > n {
				t.Errorf("%v, a call each %v: %d in a window", kind.Name, gap, most)
			}
		}
	}
}

// As many as there is room for go at once, then none for the window, and then as many again.
func TestAllOfAWindowGoesAtOnce(t *testing.T) {
	for _, l := range []Limit{moving(5, time.Second), fixed(5, time.Second)} {
		limits := []Limit{l}
		s := New(0)
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

// However far ahead bookings go, the log keeps few entries, and no window has more than n.
func TestALogOfManyBookingsIsShortAndLosesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 0))
	for _, l := range []Limit{moving(3, time.Second), fixed(3, time.Second)} {
		limits := []Limit{l, {Capacity: 1, Rate: 2.5}}
		s := New(0)
		var places []time.Duration
		var charges []Charge
		for range 3000 {
			var c Charge
			s.Fill(limits, &Units{1, 1}, farthest, &c)
			charges = append(charges, c)
			if r.IntN(4) == 0 { // undo the last, and more
				k := len(charges) - 1
				for ; k > 0 && r.IntN(3) > 0 && s.Unbook(limits, &charges[k]); k-- {
				}
				charges = charges[:k+1]
			}
			if g := s.log(&l); len(g.Entries) > maxEntries {
				t.Fatalf("%d entries", len(g.Entries))
			}
		}
		for i := range charges {
			places = append(places, charges[i].Place)
		}
		if most := mostInAnyWindow(places, time.Second); l.Kind == Moving && most > 3 {
			t.Errorf("%d in a window", most)
		}
		if total := s.log(&l).sum; total < float64(len(charges))-0.5 {
			t.Errorf("%s: the log has %v units of %d", l.Name, total, len(charges))
		}
	}
}

// What comes back of any call makes room at once.
func TestWhatAWindowGetsBackIsThereAtOnce(t *testing.T) {
	limits := []Limit{moving(4, time.Second)}
	for back := range 4 {
		s := New(0)
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

// After a hold one call goes, and then they drip; a limit with a longer window keeps its room.
func TestAWindowDripsAfterAHold(t *testing.T) {
	limits := []Limit{moving(64, 64*time.Second), moving(1000, time.Hour)}
	s := New(0)
	s.Advance(limits, time.Hour)
	s.Hold(limits, 10*time.Second, nil)
	now := time.Hour
	for k := range 10 {
		var c Charge
		wait, _, ok := s.Fill(limits, &Units{1, 1}, farthest, &c)
		if want := 10*time.Second + time.Duration(k)*time.Second; !ok || wait < want-2*time.Second || wait > want+time.Second {
			t.Errorf("call %d goes after %v, want about %v", k, wait, want)
		}
	}
	s.Advance(limits, now+time.Minute)
	if level := s.Level[1].Level; level != 10 {
		t.Errorf("the long window has %v units, want 10", level)
	}
	s.Resume(limits)
	var c Charge
	if _, _, ok := s.Fill(limits, &Units{40, 1}, 0, &c); !ok {
		t.Error("after a Resume the window still drips")
	}
}

// A key with logs survives its bytes and JSON, field by field.
func TestAKeyWithLogsIsInItsBytes(t *testing.T) {
	s := keyWithLogs(t)
	data, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var again, ofJSON Stored
	s.State.Logs.sound()
	if err := again.UnmarshalBinary(data); err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("%v\n%+v\n%+v", err, *again.State.Logs, *s.State.Logs)
	}
	text, err := json.Marshal(&s)
	if err != nil || json.Unmarshal(text, &ofJSON) != nil || !ofJSON.State.Logs.sound() || !reflect.DeepEqual(ofJSON, s) {
		t.Errorf("JSON: %v, %s", err, text)
	}
	for i := range data {
		if err := again.UnmarshalBinary(data[:i]); err == nil {
			t.Errorf("cut off after %d: no error", i)
		}
	}
	t.Logf("%d bytes, and %d as JSON", len(data), len(text))
}

// keyWithLogs returns a key with a window, a fixed window and a calendar in use.
func keyWithLogs(t testing.TB) Stored {
	limits := []Limit{moving(50, time.Second), fixed(70, time.Minute), daily(90), {Capacity: 9, Rate: 5}}
	var s Stored
	for k := range time.Duration(20) {
		now := 1_800_000_000*time.Second + k*33*time.Millisecond
		op := Op{Limits: limits, Action: Book, Costs: []Units{{1, 1, 1, 0.25}}, Periods: make([]Period, len(limits))}
		op.Periods[2] = periodOf(now, 86_400)
		if r := op.Apply(&s, now); len(r.Charges) != 1 {
			t.Fatalf("%+v", r)
		}
	}
	return s
}

// A copy by assignment shares the logs, and a Clone does not.
func TestACloneOfAKeySharesNoLog(t *testing.T) {
	s := keyWithLogs(t)
	clone, text := s.Clone(), func(s *Stored) string { b, _ := s.MarshalBinary(); return string(b) }
	was := text(&clone)
	op := Op{Limits: s.Limits, Action: Book, Costs: []Units{{1, 1, 1}}, Periods: make([]Period, 4)}
	op.Periods[2] = periodOf(s.State.At, 86_400)
	if op.Apply(&s, s.State.At+time.Millisecond); text(&clone) != was || text(&s) == was {
		t.Error("a step has changed a clone, or not the key")
	}
}

// A log that cannot be is garbage: full, told, and opened by a Resume.
func TestGarbageInALogIsFullAndOpens(t *testing.T) {
	for name, spoil := range map[string]func(g *Log){
		"negative units":     func(g *Log) { g.Entries[0].Units = -1 },
		"units of no number": func(g *Log) { g.Entries[0].Units /= g.Entries[0].Units - g.Entries[0].Units },
		"out of order":       func(g *Log) { g.Entries[0].Last = g.Entries[1].Last + 1 },
		"too many":           func(g *Log) { g.Entries = make([]Entry, maxEntries+1) },
		"aged too much":      func(g *Log) { g.Entries[0].Aged = 1 << 62 },
		"younger than now":   func(g *Log) { g.Entries[1].Aged = -2 },
		"aged out of order":  func(g *Log) { g.Entries[1].Aged = time.Second },
		"a time too far":     func(g *Log) { g.Entries[1].Last = 1 << 62 },
		"a total too large":  func(g *Log) { g.Total = 1e300 },
		"a window below 0":   func(g *Log) { g.Longest = -1 },
	} {
		limits := []Limit{moving(2, time.Second)}
		var s Stored
		for k := range time.Duration(2) {
			(&Op{Limits: limits, Action: Book, Costs: []Units{{1}}}).Apply(&s, k*100*time.Millisecond)
		}
		g := &(*s.State.Logs)[0]
		spoil(g)
		g.known = false // as a store reads it
		op := Op{Limits: limits, Action: Book, Costs: []Units{{1}}}
		if r := op.Apply(&s, 300*time.Millisecond); !r.Garbage || !r.Refused || r.Wait != time.Second {
			t.Errorf("%s: %+v", name, r)
		}
		(&Op{Limits: limits, Action: Resume}).Apply(&s, 300*time.Millisecond)
		if r := op.Apply(&s, 300*time.Millisecond); len(r.Charges) != 1 {
			t.Errorf("%s: a Resume does not open it: %+v", name, r)
		}
	}
}

// What is in a limit of one kind is in it as another kind.
func TestALimitKeepsWhatIsInItWhenItsKindChanges(t *testing.T) {
	kinds := []Limit{named(moving(10, time.Second)), named(fixed(10, time.Second)), named(daily(10)), named(Limit{Capacity: 10, Rate: 1})}
	for _, from := range kinds {
		for _, to := range kinds {
			var s Stored
			now := 1_800_000_003 * time.Second
			ask := func(op Op, l Limit) Reply {
				op.Limits, op.Stamp, op.Periods = []Limit{l}, s.Stamp, []Period{periodOf(now, 86_400)}
				return op.Apply(&s, now)
			}
			ask(Op{Action: Book, Costs: []Units{{6}}}, from)
			ask(Op{Action: Replace, Replacement: []Limit{to}}, from)
			if r := ask(Op{Action: Book, Costs: []Units{{4}}}, to); len(r.Charges) != 1 {
				t.Errorf("kind %d to %d: 4 of 10 have no room beside 6: %+v", from.Kind, to.Kind, r)
			}
			if r := ask(Op{Action: Book, Costs: []Units{{1}}}, to); !r.Refused {
				t.Errorf("kind %d to %d: there is room beside 10 of 10", from.Kind, to.Kind)
			}
		}
	}
}

// An API's window ends up to 10 ms before the limit's. A call at the end of this one may begin the
// API's next one, and then counts in it.
func TestACallAtTheEndOfAFixedWindowCountsInTheNext(t *testing.T) {
	const n, window = 2, 10*time.Second + spread
	op := Op{Limits: []Limit{{Kind: Fixed, Capacity: n, Rate: n / window.Seconds(), Window: window}}, Action: Book, Costs: []Units{{1}}}
	for _, early := range []time.Duration{1, spread, 2 * spread} {
		var s Stored
		op.Apply(&s, 0)
		if r := op.Apply(&s, window-early); r.Refused {
			t.Fatalf("%v before the end: %v", early, r.Wait)
		}
		in := 0
		for range n + 1 {
			in += len(op.Apply(&s, window).Charges)
		}
		if in != n-1 {
			t.Errorf("beside a call %v before the end of its window %d go in the next, want %d", early, in, n-1)
		}
		if r := op.Apply(&s, 2*window-early-1); !r.Refused {
			t.Errorf("%v before the end: one more goes within a window", early)
		}
		if r := op.Apply(&s, 2*window); r.Refused {
			t.Errorf("%v before the end: a window later it is refused for %v", early, r.Wait)
		}
	}
	var s Stored
	op.Apply(&s, 0)
	op.Apply(&s, window-2*spread-1)
	for range n {
		if r := op.Apply(&s, window); r.Refused {
			t.Errorf("beside a call that was surely in the window before: %v", r.Wait)
		}
	}
}
