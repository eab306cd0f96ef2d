package store

import (
	"math"
	"slices"
	"testing"
	"time"
)

// spoiled are ways in which a key cannot be.
func spoiled() map[string]func(*Stored) {
	return map[string]func(*Stored){
		"speed":           func(s *Stored) { s.State.Speed = -1 },
		"no speed":        func(s *Stored) { s.State.Speed = math.NaN() },
		"level":           func(s *Stored) { s.State.Level[0] = math.NaN() },
		"negative level":  func(s *Stored) { s.State.Level[0] = -1 },
		"infinite level":  func(s *Stored) { s.State.Level[0] = math.Inf(1) },
		"ret":             func(s *Stored) { s.State.Parts[0].Ret = math.Inf(1) },
		"owed":            func(s *Stored) { s.State.Parts[0].Owed = -1 },
		"last":            func(s *Stored) { s.State.Last = math.MaxInt64 },
		"rem":             func(s *Stored) { s.State.Rem = math.MaxInt64 },
		"fails":           func(s *Stored) { s.State.Fails = -3 },
		"skip":            func(s *Stored) { s.State.Skip = math.MinInt64 / 2 },
		"another century": func(s *Stored) { s.State.At += 200 * 366 * 24 * time.Hour },
		"row":             func(s *Stored) { s.State.Row.Calls = 3 },
		"row's speed":     func(s *Stored) { s.State.Row = Row{Top: 2} },
		"row's calls":     func(s *Stored) { s.State.Row = Row{Top: 1, Calls: -1} },
		"row's many":      func(s *Stored) { s.State.Row = Row{Top: 1, Calls: mostCalls + 1} },
		"row's refusals":  func(s *Stored) { s.State.Row = Row{Top: 1, Refused: -1} },
		"row's refused":   func(s *Stored) { s.State.Row = Row{Top: 1, Refused: mostRefused + 1} },
		"row's per":       func(s *Stored) { s.State.Row = Row{Top: 1, Per: math.NaN()} },
		"row's fast":      func(s *Stored) { s.State.Row = Row{Top: 1, Fast: 2} },
		"row's doubt":     func(s *Stored) { s.State.Row = Row{Top: 1, Trust: -4} },
		"row's trust":     func(s *Stored) { s.State.Row = Row{Top: 1, Trust: trusted + 1} },
		"slot":            func(s *Stored) { s.State.Parts[1].Slots[0].Units = math.NaN() },
		"slot's end":      func(s *Stored) { s.State.Parts[1].Slots[0].End = math.MaxInt64 },
		"slots":           func(s *Stored) { s.State.Parts[1].Slots = make([]Slot, maxSlots+1) },
		"no parts":        func(s *Stored) { s.State.Parts = nil },
		"fixed units":     func(s *Stored) { s.State.Parts[2].Units = -1 },
		"fixed end":       func(s *Stored) { s.State.Parts[2].End = math.MinInt64 },
		"top":             func(s *Stored) { s.State.Top = s.State.IDs + 1 },
		"the last number": func(s *Stored) { s.State.IDs = math.MaxInt64 },
		"number":          func(s *Stored) { s.Number = -1 },
		"largest number":  func(s *Stored) { s.Number = math.MaxInt64 },
		"lead":            func(s *Stored) { s.Lead = math.NaN() },
		"capacity":        func(s *Stored) { s.Limits[0].Capacity = -1 },
		"window":          func(s *Stored) { s.Limits[1].Window = 1 },
		"two of a name":   func(s *Stored) { s.Limits[1] = s.Limits[0] },
		"no limits":       func(s *Stored) { s.Limits = nil },
	}
}

// A key that cannot be is full, reports it once, and is neither open nor shut permanently: time
// opens it, and so does a Resume.
func TestCorrupt_KeyIsFullAndOpens(t *testing.T) {
	for name, spoil := range spoiled() {
		for _, resume := range []bool{false, true} {
			k := newKey(t, Limit{Name: "pace", Capacity: 10, Rate: 1}, moving(10, 10*time.Second), fixedWindow(10, 10*time.Second), Limit{Name: "hour", Kind: Hourly, Capacity: 10})
			book := Op{Action: Book, Costs: []Units{{1, 1, 1, 1}}}
			k.do(3700, book)
			k.Limits = slices.Clone(k.Limits)
			k.trusted = false
			spoil(&k.Stored)
			if r := k.do(3700.001, book); !r.Corrupt || !r.Refused || len(r.Charges) > 0 || !r.Changed {
				t.Errorf("%s: corrupt %v, refused %v, %d charges, changed %v", name, r.Corrupt, r.Refused, len(r.Charges), r.Changed)
			}
			if r := k.do(3700.001, book); r.Corrupt || !r.Refused {
				t.Errorf("%s, once more: corrupt %v, refused %v", name, r.Corrupt, r.Refused)
			}
			b, _ := k.MarshalBinary()
			if err := k.UnmarshalBinary(b); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			at := 7320.001
			if resume {
				at = 3720.001
				k.do(at, Op{Action: Resume})
			}
			if r := k.do(at, book); len(r.Charges) != 1 {
				t.Errorf("%s, resumed %v: still refused for %v by %d", name, resume, r.Wait, r.Limit)
			}
		}
	}
}

// A Resume empties a corrupt key, whatever its limits, except for what calls have taken since: after
// it no more leaves than the limits allow for these and what follows.
func TestCorrupt_ResumeKeepsWhatCallsHaveTaken(t *testing.T) {
	for name, l := range map[string]Limit{
		"leaky":  {Name: "a", Capacity: 10, Rate: 1},
		"window": moving(10, 10*time.Second),
		"fixed":  fixedWindow(10, 10*time.Second),
		"hourly": {Name: "a", Kind: Hourly, Capacity: 10},
	} {
		k, at := newKey(t, l), 3700.
		book := func(n float64) int { return len(k.book(at, 0, Units{n}).Charges) }
		resume := func(free float64) {
			t.Helper()
			c := k.Stored.Clone()
			if k.do(at, Op{Action: Resume}); k.State.Corrupt || book(free) != 1 || book(0.01) != 0 {
				t.Errorf("%s: after a Resume %v of %v are free, want %v", name, l.Capacity-k.State.Level[0], l.Capacity, free)
			}
			k.Stored = c
		}
		corrupt := func() {
			k.State.Speed, k.trusted = -1, false
			if !k.do(at, Op{}).Corrupt {
				t.Errorf("%s: not corrupt", name)
			}
		}
		book(1)
		corrupt()
		resume(10)
		at += 4
		left := 10.
		if book(3) == 1 { // of a leaky limit four units have leaked
			left -= 3
		}
		resume(left)
		k.report(at, Report{Kind: Held, Wait: time.Second})
		if at++; name != "leaky" { // which a hold fills
			resume(left)
		}
		at += 7200
		for book(1) == 1 {
		}
		resume(0)
		at += 7200
		corrupt()
		l.Capacity = 15 // as SetLimits raises it: calls may have taken the rest
		if l.Window > 0 {
			l.Rate *= 1.5
		}
		k.replace(at, l)
		book(5)
		resume(0)
	}
}

// Bytes that AppendBinary has not written are corrupt: cut off, too many, or of another format.
func TestCorrupt_BytesThatAreNoKey(t *testing.T) {
	var s Stored
	op := Op{Limits: []Limit{{Capacity: 1, Rate: 1}}, Action: Book, Costs: []Units{{1}}}
	op.Apply(&s, time.Hour)
	whole, _ := s.MarshalBinary()
	if err := s.UnmarshalBinary(whole); err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		if err := s.UnmarshalBinary(whole[:i]); err == nil || s.State.Speed >= 0 {
			t.Errorf("%d of %d bytes: %v", i, len(whole), err)
		}
	}
	for name, b := range map[string][]byte{"more": append(whole[:len(whole):len(whole)], 0), "another format": append([]byte{format + 1}, whole[1:]...)} {
		if err := s.UnmarshalBinary(b); err == nil {
			t.Errorf("%s: no error", name)
		}
		if r := op.Apply(&s, time.Hour); !r.Corrupt || !r.Refused {
			t.Errorf("%s: corrupt %v, refused %v", name, r.Corrupt, r.Refused)
		}
	}
}

// No bytes make Apply panic, and what it leaves is sound.
func FuzzApply(f *testing.F) {
	for seed := range uint64(3) {
		tr := newTrace(seed, someWorkers()...)
		var s Stored
		for range 50 {
			op := tr.step(&s)
			op.ApplyAt(&s, tr.now, tr.unix())
		}
		b, _ := s.MarshalBinary()
		f.Add(b, int64(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed int64) {
		var s Stored
		if err := s.UnmarshalBinary(b); err == nil {
			if again, _ := s.MarshalBinary(); string(again) != string(b) {
				t.Fatalf("%x is written as %x", b, again)
			}
		}
		tr := newTrace(uint64(seed)%100, someWorkers()...)
		if s.State.Speed > 0 {
			tr.now = s.State.At
		}
		for range 5 {
			op := tr.step(&s)
			op.ApplyAt(&s, tr.now, tr.unix())
			if !s.sound(tr.now) {
				t.Fatalf("not sound: %+v", s)
			}
		}
	})
}
