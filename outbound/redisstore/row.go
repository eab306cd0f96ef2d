package redisstore

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// row is a key as the server keeps it: the fields s, x and v, as the table in hot.lua says. It does
// not change once it is made.
type row struct {
	token  string  // the first bytes of s, which are other after each write; "": there is no key
	print  float64 // of fixed; 0: only Go may change the key
	fixed  string  // v
	stored store.Stored
}

const (
	head     = 144     // bytes of s before the levels
	perLimit = 16      // bytes of s for each limit
	rest     = 56      // bytes of x before the limits
	largest  = 9e15    // below it a float64 holds each whole number
	epochLow = 1 << 20 // the part of an epoch that the server counts on
)

// leaky reports whether the server may carry steps of a key out by itself.
func leaky(s *store.Stored) bool {
	st := &s.State
	within := func(d time.Duration) bool { return d > -largest && d < largest }
	if len(s.Limits) == 0 || len(st.Parts) != len(s.Limits) || st.At%1000 != 0 || st.Born%1000 != 0 || s.Made%1000 != 0 || st.Row.Until%1000 != 0 ||
		!within(st.Skip) || !within(st.Rem) || !within(st.Last) || st.IDs >= largest {
		return false
	}
	for i := range st.Parts {
		for _, d := range [...]time.Duration{st.Parts[i].Begin, st.Parts[i].End} {
			if s.Limits[i].Kind.Calendar() && d%1000 != 0 {
				return false
			}
		}
	}
	return true
}

// fixedOf returns what hot steps do not change: limits and numbers.
func fixedOf(s *store.Stored) string {
	f := store.Stored{State: store.New(0, len(s.Limits)), Limits: s.Limits, Number: s.Number, Base: s.Base, Set: s.Set}
	f.State.Corrupt = s.State.Corrupt
	for i := range f.State.Parts {
		p := &f.State.Parts[i]
		if p.Since = s.State.Parts[i].Since; s.Limits[i].Kind == store.Leaky {
			p.End = s.State.Parts[i].End
		}
	}
	b, _ := f.AppendBinary(nil)
	return string(b)
}

// printOf returns a number that stands for fixed.
func printOf(fixed string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(fixed))
	return float64(h.Sum64()>>12) + 1 // which loses nothing
}

// newRow returns the row of a key with a new token. known has its fixed part already, or is nil.
func newRow(s store.Stored, token string, known *row) *row {
	r := &row{token: token, stored: s}
	switch {
	case !leaky(&s):
		b, _ := s.AppendBinary(nil)
		r.fixed = string(b)
	case known != nil && known.print != 0:
		r.print, r.fixed = known.print, known.fixed
	default:
		r.fixed = fixedOf(&s)
		r.print = printOf(r.fixed)
	}
	return r
}

// parts returns g: what the limits that are not leaky keep.
func (r *row) parts() (b []byte) {
	st := &r.stored.State
	for i := range r.stored.Limits {
		l, p := &r.stored.Limits[i], &st.Parts[i]
		if l.Kind == store.Leaky {
			continue
		}
		if b == nil {
			b = numbers(b, float64((st.At-st.Born)/1000), float64(st.Skip))
		}
		sure, dial := 0., st.Dial()
		if p.Sure {
			sure = 1
		}
		begin, end := float64(p.Begin-dial), float64(p.End-dial)
		if l.Kind.Calendar() {
			begin, end = float64(p.Begin/1000), float64(p.End/1000)
		}
		b = numbers(b, begin, end, p.Units, sure, float64(p.Skip), float64(len(p.Slots)))
		for _, t := range p.Slots {
			b = numbers(b, float64(t.End-dial), t.Units)
		}
	}
	return b
}

// readParts reads g, and reports whether it can.
func readParts(t *store.Stored, g string) bool {
	st, f, dial := &t.State, reader{text: g}, time.Duration(0)
	for i := range t.Limits {
		l, p := &t.Limits[i], &st.Parts[i]
		if l.Kind == store.Leaky {
			continue
		}
		if f.text == g {
			if len(g) < 16 {
				return false
			}
			dial = f.micros() - time.Duration(f.int())
		}
		if len(f.text) < 48 {
			return false
		}
		if l.Kind.Calendar() {
			p.Begin, p.End = f.micros(), f.micros()
		} else {
			p.Begin, p.End = dial+time.Duration(f.int()), dial+time.Duration(f.int())
		}
		p.Units, p.Sure, p.Skip = f.float(), f.float() == 1, time.Duration(f.int())
		n := f.int()
		if n < 0 || n > int64(len(f.text)/16) {
			return false
		}
		for range n {
			p.Slots = append(p.Slots, store.Slot{End: dial + time.Duration(f.int()), Units: f.float()})
		}
	}
	return !f.bad && f.text == ""
}

// fields returns s and x. keep is for how long the server keeps the key from At on.
func (r *row) fields(keep time.Duration) (s, x []byte) {
	t, st := &r.stored, &r.stored.State
	micros := func(d time.Duration) float64 { return float64(d / 1000) }
	s = append(make([]byte, 0, head+perLimit*len(t.Limits)), r.token...)
	s = numbers(s, r.print, 0, micros(st.At)+micros(keep), micros(st.At), micros(st.Born), micros(t.Made), float64(st.Skip), float64(st.Rem), float64(st.Last),
		st.Speed, float64(st.Epoch>>20), float64(st.Epoch&(epochLow-1)), float64(st.Fails), float64(st.Why), float64(st.Top), float64(st.IDs), t.Lead)
	if r.print == 0 {
		return s, nil
	}
	some := st.Row.Top != 0
	for i := range t.Limits {
		p := &st.Parts[i]
		s = numbers(s, st.Level[i], p.Ret)
		some = some || st.Leaked[i] != 0 || p.Over != 0 || p.Owed != 0
	}
	if some {
		w := &st.Row
		x = numbers(nil, float64(w.Calls), float64(w.Refused), w.Top, w.Per, w.Fast, float64(w.Trust), micros(w.Until))
		for i := range t.Limits {
			x = numbers(x, st.Leaked[i], st.Parts[i].Over, st.Parts[i].Owed)
		}
	}
	return s, x
}

// readRow reads what newRow or the server has written. What cannot be read is corrupt, as
// [store.Op.Apply] takes it.
func readRow(s, x, v, g string) *row {
	if s == "" {
		return &row{}
	}
	r := &row{token: s[:min(8, len(s))], fixed: v}
	if len(s) < head {
		r.stored.State.Speed = -1
		return r
	}
	f := reader{text: s[8:]}
	print := f.float()
	if err := r.stored.UnmarshalBinary([]byte(v)); err != nil || print == 0 {
		return r
	}
	if printOf(v) != print || !overlay(&r.stored, s, x, g) {
		r.stored.State.Speed = -1
		return r
	}
	r.print = print
	return r
}

// overlay sets the numbers that hot steps change, and reports whether they can be read.
func overlay(t *store.Stored, s, x, g string) bool {
	if len(s) != head+perLimit*len(t.Limits) || len(x) != 0 && len(x) != rest+24*len(t.Limits) {
		return false
	}
	f, st := reader{text: s[8+3*8:]}, &t.State
	st.At, st.Born, t.Made = f.micros(), f.micros(), f.micros()
	st.Skip, st.Rem, st.Last, st.Speed = time.Duration(f.int()), time.Duration(f.int()), time.Duration(f.int()), f.float()
	high, low := f.int(), f.int()
	st.Epoch, st.Fails, st.Why = high<<20+low, int(f.int()), uint8(f.int())
	st.Top, st.IDs, t.Lead = f.int(), f.int(), f.float()
	for i := range t.Limits {
		st.Level[i], st.Parts[i].Ret = f.float(), f.float()
	}
	if !readParts(t, g) {
		return false
	}
	if x == "" {
		return !f.bad
	}
	f.text = x
	w := &st.Row
	w.Calls, w.Refused, w.Top, w.Per, w.Fast, w.Trust, w.Until = f.int(), f.int(), f.float(), f.float(), f.float(), f.int(), f.micros()
	if w.Top == 0 {
		*w = store.Row{}
	}
	for i := range t.Limits {
		st.Leaked[i], st.Parts[i].Over, st.Parts[i].Owed = f.float(), f.float(), f.float()
	}
	return !f.bad
}

// reader reads numbers from the front of a text, which is long enough.
type reader struct {
	text string
	bad  bool // a whole number was none
}

func (r *reader) float() float64 {
	x := number(r.text)
	r.text = r.text[8:]
	return x
}

func (r *reader) int() int64 {
	x := r.float()
	if !(x > -9.2e18 && x < 9.2e18) {
		r.bad = true
		return 0
	}
	return int64(x)
}

func (r *reader) micros() time.Duration {
	x := r.int()
	if x > math.MaxInt64/1000 || x < math.MinInt64/1000 {
		r.bad = true
		return 0
	}
	return time.Duration(x) * time.Microsecond
}

// number reads the number at the front of a text.
func number(s string) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8])))
}

// numbers appends numbers as the script reads them.
func numbers(b []byte, x ...float64) []byte {
	for _, f := range x {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}
