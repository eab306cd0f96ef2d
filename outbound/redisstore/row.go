package redisstore

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// row is a key as the server keeps it, as the table in hot.lua says. It does not change once it is
// made.
type row struct {
	seen    string // s, or its token, or empty without a key
	edition string // of fixed, or empty if only a swap may change the key
	fixed   string // v: Born, Made, and what hot steps do not change
	epoch   int64  // of fixed
	g       string // slots of windows, as they were at gid
	gid     int64
	stored  store.Stored
	one     [1]store.Part // memory for the part of one limit
}

const (
	tokenSize = 6             // bytes at the front of s
	headSize  = tokenSize + 4 // with the edition
	foreign   = 1e17          // the id of a charge that is unknown to a key
	holdMem   = int64(store.HoldMemory)
	grace     = int64(store.BookingGrace)
	anyTime   = -1 // the gid of slots that are read with s
)

// scripted reports whether the script knows the kinds of all limits. If not, v has all of the key.
var scripted = func(limits []store.Limit) bool {
	return !slices.ContainsFunc(limits, func(l store.Limit) bool { return !l.Kind.Scripted() })
}

// parted reports whether one of the limits is not leaky.
func parted(limits []store.Limit) bool {
	return slices.ContainsFunc(limits, func(l store.Limit) bool { return l.Kind != store.Leaky })
}

// fixedOf returns v, less Born and Made. A sum at its end detects spoiled bytes.
func fixedOf(s *store.Stored, epoch int64) string {
	f := store.Stored{State: store.New(0, len(s.Limits)), Limits: s.Limits, Number: s.Number, Base: s.Base, Set: s.Set, Holders: s.Holders}
	f.State.Epoch, f.State.Rem, f.State.Last = epoch-int64(s.State.Born), 0, 0 // which are short
	f.State.Corrupt, f.State.Resumed = s.State.Corrupt, s.State.Resumed
	for i := range f.State.Parts {
		f.State.Parts[i].Since = s.State.Parts[i].Since
	}
	if !scripted(s.Limits) {
		f = *s
	}
	b, _ := f.AppendBinary(nil)
	return string(binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
}

// readFixed reads v, and reports whether it can.
func (r *row) readFixed(v string) bool {
	f := reader{text: v}
	born, made := f.micros(), f.micros()
	n := len(f.text) - 4
	if f.bad || n < 0 || string(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(f.text[:n])))) != f.text[n:] ||
		r.stored.UnmarshalBinary([]byte(f.text[:n])) != nil {
		return false
	}
	st := &r.stored.State
	r.fixed, r.epoch = v, st.Epoch+int64(born)
	st.Born, r.stored.Made = born, made
	return true
}

// madeAt returns v of a key that begins at born.
func madeAt(born, made time.Duration, fixed string) string {
	return string(integers(nil, int64(born/1000), int64(made/1000))) + fixed
}

// newRow returns the row of s that a swap writes in place of known, and whether its v is another
// one.
func newRow(s store.Stored, token string, known *row) (r *row, other bool) {
	r = &row{seen: token, edition: known.edition, epoch: known.epoch, gid: known.gid, stored: s}
	if e := s.State.Epoch - r.epoch; e < 0 || e > 1e9 || s.State.Born != known.stored.State.Born {
		r.epoch = s.State.Epoch
	}
	r.fixed = madeAt(s.State.Born, s.Made, fixedOf(&s, r.epoch))
	if other = r.edition == "" || r.fixed != known.fixed; other {
		r.edition = token[:4]
	}
	if scripted(s.Limits) {
		r.slots()
	}
	return r, other
}

// slots sets g, and gid to a time that no other g has.
func (r *row) slots() {
	st := &r.stored.State
	at := max(int64(st.At/1000), r.gid+2) // the script may have written the next one
	b := integers(nil, at, int64(st.Skip)+at*1000-int64(st.At))
	r.g, r.gid = "", 0
	for i := range r.stored.Limits {
		slots := st.Parts[i].Slots
		for _, t := range slots[:max(0, len(slots)-1)] {
			b, r.gid = numbers(integers(b, int64(t.End-st.Dial())), t.Units), at
		}
	}
	if r.gid != 0 {
		r.g = string(b)
	}
}

// fields returns s. keep is for how long the server keeps the key from At on.
func (r *row) fields(keep time.Duration) []byte {
	t, st := &r.stored, &r.stored.State
	micros := func(d time.Duration) int64 { return int64(d / 1000) }
	some := st.Row.Top != 0
	for i := range t.Limits {
		some = some || st.Leaked[i] != 0 || st.Parts[i].Over != 0 || st.Parts[i].Owed != 0
	}
	b := append(make([]byte, 0, 64+16*len(t.Limits)), r.seen...)
	b = append(b, r.edition...)
	if !scripted(t.Limits) {
		return b
	}
	b = integers(b, micros(st.At), int64((st.At+keep)/time.Second), int64(st.Skip), int64(st.Rem)+holdMem, int64(st.Last)+grace)
	b = integers(numbers(b, st.Speed), st.Epoch-r.epoch, int64(st.Fails), int64(st.Why), st.Top, st.IDs)
	b = integers(numbers(b, t.Lead), flag(some), r.gid)
	for i := range t.Limits {
		b = numbers(b, st.Level[i], st.Parts[i].Ret)
	}
	dial := st.Dial()
	for i := range t.Limits {
		switch p := &st.Parts[i]; {
		case t.Limits[i].Kind == store.Window:
			var slots [3]store.Slot // the first, the last but one, the last
			older := max(0, len(p.Slots)-1)
			if len(p.Slots) > 0 {
				slots[2] = p.Slots[older]
			}
			b = integers(b, int64(p.Begin-dial), int64(slots[2].End-dial))
			b = integers(numbers(b, slots[2].Units), int64(older))
			if older > 0 {
				slots[0], slots[1] = p.Slots[0], p.Slots[older-1]
			}
			b = integers(b, int64(slots[0].End-dial), int64(slots[1].End-dial))
		case t.Limits[i].Kind != store.Leaky:
			begin, end := int64(p.Begin-dial), int64(p.End-dial)
			if t.Limits[i].Kind.Calendar() {
				begin, end = micros(p.Begin), micros(p.End)
			}
			b = integers(numbers(integers(b, begin, end), p.Units), flag(p.Sure), int64(p.Skip), 0)
		}
	}
	if parted(t.Limits) {
		at, to := t.Opening.At-dial, t.Opening.To-dial
		if t.Opening.Bids == 0 {
			at, to = 0, 0
		}
		b = numbers(integers(b, int64(at), int64(to)), t.Opening.Bids, t.Opening.Calls, t.Opening.Done, t.Opening.Took)
	}
	if some {
		w := &st.Row
		b = numbers(integers(b, w.Calls, w.Refused), w.Top, w.Per, w.Fast)
		b = integers(b, w.Trust, micros(w.Until))
		for i := range t.Limits {
			b = numbers(b, st.Leaked[i], st.Parts[i].Over, st.Parts[i].Owed)
		}
	}
	return b
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// readRow reads what a swap or the server has written. What cannot be read is corrupt, as
// [store.Op.Apply] takes it.
func readRow(s, v, g string) *row {
	if s == "" {
		return &row{}
	}
	r := &row{seen: s}
	f := reader{text: s[min(headSize, len(s)):]}
	if !r.readFixed(v) || scripted(r.stored.Limits) && !r.overlay(&f, &row{g: g, gid: anyTime}) {
		r.stored.State.Speed = -1
		return r
	}
	r.edition = s[tokenSize:headSize]
	return r
}

// overlay sets the numbers that hot steps change, and reports whether it can read them. The slots
// are those of known if they are of the same time; else they follow in f.
func (r *row) overlay(f *reader, known *row) bool {
	t, st := &r.stored, &r.stored.State
	st.At = f.micros()
	f.int()
	st.Skip, st.Rem, st.Last, st.Speed = f.nanos(), f.nanos()-store.HoldMemory, f.nanos()-store.BookingGrace, f.float()
	st.Epoch, st.Fails, st.Why = r.epoch+f.int(), int(f.int()), uint8(f.int())
	st.Top, st.IDs, t.Lead = f.int(), f.int(), f.float()
	some := f.int() != 0
	r.gid = f.int()
	for i := range t.Limits {
		st.Level[i], st.Parts[i].Ret = f.float(), f.float()
	}
	dial, left := st.Dial(), int64(0)
	var older [store.Max]int64
	var newest [store.Max]store.Slot
	for i := range t.Limits {
		p, kind := &st.Parts[i], t.Limits[i].Kind
		if kind == store.Leaky {
			continue
		}
		if kind.Calendar() {
			p.Begin, p.End = f.micros(), f.micros()
		} else {
			p.Begin, p.End = dial+f.nanos(), dial+f.nanos()
		}
		units, n, d := f.float(), f.int(), f.nanos()
		f.int()
		if kind == store.Window {
			newest[i], older[i], p.End = store.Slot{End: p.End, Units: units}, n, 0
			left = max(left, n)
		} else {
			p.Units, p.Sure, p.Skip = units, n == 1, d
		}
	}
	if t.Opening = (store.Opening{}); parted(t.Limits) {
		o := store.Opening{At: dial + f.nanos(), To: dial + f.nanos(), Bids: f.float(), Calls: f.float(), Done: f.float(), Took: f.float()}
		if o.Bids > 0 {
			t.Opening = o
		}
	}
	if some {
		w := &st.Row
		w.Calls, w.Refused, w.Top, w.Per, w.Fast, w.Trust, w.Until = f.int(), f.int(), f.float(), f.float(), f.float(), f.int(), f.micros()
		if w.Top == 0 {
			*w = store.Row{}
		}
		for i := range t.Limits {
			st.Leaked[i], st.Parts[i].Over, st.Parts[i].Owed = f.float(), f.float(), f.float()
		}
	}
	from := *f
	if known.gid == r.gid || known.gid == anyTime {
		from = reader{text: known.g}
		r.g = known.g
	} else {
		r.g, f.text = f.text, ""
	}
	if r.gid == 0 {
		r.g = ""
	} else if at := from.int(); at != r.gid {
		return false
	} else {
		dial = time.Duration(at)*time.Microsecond - st.Born - from.nanos()
	}
	for i := range t.Limits {
		p := &st.Parts[i]
		if older[i] < 0 || older[i] > 128 || left > 0 && r.gid == 0 {
			return false
		}
		for range older[i] {
			p.Slots = append(p.Slots, store.Slot{End: dial + from.nanos(), Units: from.float()})
		}
		if newest[i].Units > 0 {
			p.Slots = append(p.Slots, newest[i])
		}
	}
	return !f.bad && !from.bad && f.text == "" && (r.gid == 0 || from.text == "")
}
