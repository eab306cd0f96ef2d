package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// format is the first byte of what AppendBinary writes.
const format = 6

// ErrCorrupt is the error, with its reason, of bytes that are not a [Stored], or of one that Apply
// cannot have left.
const ErrCorrupt = Sentinel("store: corrupt data")

// AppendBinary appends s to b, for a store that keeps rows of bytes. It implements
// [encoding.BinaryAppender], and its error is always nil: it writes s as it is. A key of one leaky
// limit takes about 90 bytes.
//
// The first byte is the number of the format. Then come the fields of State up to IDs; Number,
// Base, Made and Lead; the Opening; the number of limits, and each with its level and its part;
// then the holders, if there are any. Integers are
// varints, most times differences. A float64 is its bits as a varint, the exponent in the lowest
// bytes, so that small whole numbers are short.
func (s *Stored) AppendBinary(b []byte) ([]byte, error) {
	st := &s.State
	b = append(slices.Grow(b, 64+96*len(s.Limits)), format)
	for _, x := range [...]int64{int64(st.At), int64(st.At - st.Born), int64(st.Skip), int64(st.Rem), int64(st.Last), st.Epoch - int64(st.Born), int64(st.Fails), st.Top, st.IDs, s.Number, int64(st.At - s.Made)} {
		b = binary.AppendVarint(b, x)
	}
	b = append(binary.AppendUvarint(b, uint64(st.Why)), flag(st.Corrupt), flag(st.Resumed), flag(s.Set))
	b = binary.AppendUvarint(b, s.Base)
	b = appendFloat(appendFloat(b, st.Speed), s.Lead)
	o := &s.Opening
	b = binary.AppendVarint(binary.AppendVarint(b, int64(o.At)), int64(o.To))
	for _, x := range [...]float64{o.Bids, o.Calls, o.Done, o.Took} {
		b = appendFloat(b, x)
	}
	b = st.Row.append(b, st.At)
	b = binary.AppendUvarint(b, uint64(len(s.Limits)))
	for i := range s.Limits {
		b = s.Limits[i].appendBinary(b)
		if i < min(Max, len(st.Parts)) { // more cannot be read
			b = st.Parts[i].append(appendFloat(appendFloat(b, st.Level[i]), st.Leaked[i]))
		}
	}
	return s.Holders.append(b), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler]. It is AppendBinary to nothing.
func (s *Stored) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary sets s to what AppendBinary has written. It implements
// [encoding.BinaryUnmarshaler], and keeps nothing of data. It fails, with [ErrCorrupt], if data is
// of another format, is cut off, goes on after its end, or holds numbers that Apply cannot have
// left. Then s is corrupt: Apply takes every limit for full, of those that were in force if they
// could be read.
func (s *Stored) UnmarshalBinary(data []byte) error {
	*s = Stored{}
	err := s.read(data)
	if err == nil && !s.sound(s.State.At) {
		err = fmt.Errorf("%w: a number out of range", ErrCorrupt)
	}
	if err != nil {
		if s.State.Speed = -1; !allSound(s.Limits) {
			s.Limits = nil
		}
	}
	return err
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func (p *Part) append(b []byte) []byte {
	for _, x := range [...]float64{p.Ret, p.Over, p.Owed, p.Units} {
		b = appendFloat(b, x)
	}
	for _, x := range [...]int64{p.Since, int64(p.Begin), int64(p.End - p.Begin), int64(p.Skip)} {
		b = binary.AppendVarint(b, x)
	}
	b = binary.AppendUvarint(append(b, flag(p.Sure)), uint64(len(p.Slots)))
	end := time.Duration(0)
	for _, t := range p.Slots {
		b = appendFloat(binary.AppendVarint(b, int64(t.End-end)), t.Units)
		end = t.End
	}
	return b
}

func (h *Holders) append(b []byte) []byte {
	if h == nil {
		return b
	}
	for _, x := range [...]time.Duration{h.Dial, h.Dial - h.Last, h.Shut} {
		b = binary.AppendVarint(b, int64(x))
	}
	b = binary.AppendUvarint(b, uint64(len(h.All)))
	for i := range h.All {
		o := &h.All[i]
		b = append(binary.AppendVarint(binary.AppendUvarint(b, o.ID), int64(o.Held)), flag(o.Waits))
		b = binary.AppendVarint(binary.AppendVarint(b, int64(h.Dial-o.Asked)), int64(o.Lease))
	}
	return b
}

func (r *Row) append(b []byte, at time.Duration) []byte {
	b = appendFloat(b, r.Top)
	if r.Top == 0 {
		return b // there is no row
	}
	b = binary.AppendVarint(binary.AppendVarint(b, r.Calls), r.Refused)
	b = appendFloat(appendFloat(b, r.Per), r.Fast)
	b = binary.AppendVarint(b, r.Trust)
	return binary.AppendVarint(b, int64(r.Until-at))
}

func (l *Limit) appendBinary(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(l.Name)))
	b = append(b, l.Name...)
	b = append(b, byte(l.Kind), byte(l.Unit), flag(l.Unnamed))
	b = appendFloat(appendFloat(b, l.Capacity), l.Rate)
	b = appendFloat(binary.AppendVarint(b, int64(l.Window)), l.N)
	b = binary.AppendUvarint(b, uint64(l.Version))
	b = binary.AppendUvarint(b, uint64(len(l.Zone)))
	return append(b, l.Zone...)
}

func appendFloat(b []byte, x float64) []byte {
	return binary.AppendUvarint(b, bits.ReverseBytes64(math.Float64bits(x)))
}

// read reads what AppendBinary has written, and checks no number.
func (s *Stored) read(data []byte) error {
	if len(data) == 0 || data[0] != format {
		return fmt.Errorf("%w: no bytes of format %d", ErrCorrupt, format)
	}
	r := reader{rest: data[1:]}
	st := &s.State
	st.At = r.time()
	st.Born = st.At - r.time()
	st.Skip, st.Rem, st.Last = r.time(), r.time(), r.time()
	st.Epoch = int64(st.Born) + r.int()
	st.Fails, st.Top, st.IDs, s.Number = int(r.int()), r.int(), r.int(), r.int()
	s.Made = st.At - r.time()
	st.Why, st.Corrupt, st.Resumed, s.Set, s.Base = r.byte(), r.flag(), r.flag(), r.flag(), r.uint()
	st.Speed, s.Lead = r.float(), r.float()
	s.Opening = Opening{r.time(), r.time(), r.float(), r.float(), r.float(), r.float()}
	if st.Row.Top = r.float(); st.Row.Top != 0 {
		st.Row.Calls, st.Row.Refused = r.int(), r.int()
		st.Row.Per, st.Row.Fast = r.float(), r.float()
		st.Row.Trust, st.Row.Until = r.int(), st.At+r.time()
	}
	n := r.count(Max)
	s.Limits, st.Parts = make([]Limit, n), make([]Part, n)
	for i := range s.Limits {
		s.Limits[i], st.Level[i], st.Leaked[i], st.Parts[i] = r.limit(), r.float(), r.float(), r.part()
	}
	if len(r.rest) > 0 {
		s.Holders = r.holders()
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("%w: %d bytes are truncated, too many, or hold an invalid number", ErrCorrupt, len(data))
	}
	return nil
}

func (r *reader) part() (p Part) {
	p.Ret, p.Over, p.Owed, p.Units = r.float(), r.float(), r.float(), r.float()
	p.Since, p.Begin = r.int(), r.time()
	p.End, p.Skip, p.Sure = p.Begin+r.time(), r.time(), r.flag()
	if n := r.count(maxSlots); n > 0 {
		p.Slots = make([]Slot, n)
	}
	end := time.Duration(0)
	for i := range p.Slots {
		end += r.time()
		p.Slots[i] = Slot{end, r.float()}
	}
	return p
}

func (r *reader) holders() *Holders {
	h := &Holders{Dial: r.time()}
	h.Last, h.Shut = h.Dial-r.time(), r.time()
	if n := r.count(mostHolders); n > 0 {
		h.All = make([]Holder, n)
	}
	for i := range h.All {
		h.All[i] = Holder{ID: r.uint(), Held: int(r.int()), Waits: r.flag(), Asked: h.Dial - r.time(), Lease: r.time()}
	}
	return h
}

// reader reads bytes from the front. Once it is bad it reads zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) fail() uint64 {
	r.rest, r.bad = nil, true
	return 0
}

// uint reads a varint, of which each number has one.
func (r *reader) uint() uint64 {
	x, n := binary.Uvarint(r.rest)
	if n <= 0 || n > 1 && r.rest[n-1] == 0 {
		return r.fail()
	}
	r.rest = r.rest[n:]
	return x
}

func (r *reader) int() int64 {
	x := r.uint()
	return int64(x>>1) ^ -int64(x&1)
}

func (r *reader) flag() bool { return r.count(1) != 0 }

func (r *reader) time() time.Duration { return time.Duration(r.int()) }

func (r *reader) float() float64 { return math.Float64frombits(bits.ReverseBytes64(r.uint())) }

func (r *reader) byte() byte { return byte(r.count(math.MaxUint8)) }

// count reads a number that is at most so large.
func (r *reader) count(most uint64) uint64 {
	if n := r.uint(); n <= most {
		return n
	}
	return r.fail()
}

// text reads a string after its length.
func (r *reader) text() string {
	n := r.uint()
	if n > uint64(len(r.rest)) {
		n = r.fail()
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) limit() (l Limit) {
	l.Name = r.text()
	l.Kind, l.Unit, l.Unnamed = Kind(r.byte()), int8(r.byte()), r.flag()
	l.Capacity, l.Rate, l.Window, l.N, l.Version, l.Zone = r.float(), r.float(), r.time(), r.float(), int32(r.count(math.MaxInt32)), r.text()
	return l
}
