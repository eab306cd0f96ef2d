package leak

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// The first byte of what AppendBinary writes: the number of the format, which tells whether logs
// come last.
const format, formatLogs = 1, 2

// ErrGarbage is the error, with its reason, of bytes that are no [Stored], or of one that
// Apply cannot have left.
const ErrGarbage = Sentinel("leak: what is stored makes no sense")

// AppendBinary appends s to b, for a store that keeps rows of bytes. It implements
// [encoding.BinaryAppender], and its error is always nil: it writes s as it is. A key of one
// limit takes about 60 bytes, and each further limit about 30 with its level.
//
// The first byte is the number of the format. Then come At, Born, Skip, Rem, Last, Speed,
// Epoch, Fails, Why and the row of the state; the number of limits, and of each its name,
// unit, capacity, rate, window, n and level; Stamp, Version, Lead; the number of others, and of
// each its limit, its level and its dial; and, if there are any, the number of logs, and each
// with its entries. Integers are varints, Born and Epoch differences. A
// float64 is its bits as a varint, the exponent in the lowest bytes, so that small whole
// numbers are short.
func (s *Stored) AppendBinary(b []byte) ([]byte, error) {
	return s.append(slices.Grow(b, 64+64*(len(s.Limits)+len(s.Others)))), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler]. It is AppendBinary to nothing.
func (s *Stored) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary sets s to what AppendBinary has written. It implements
// [encoding.BinaryUnmarshaler], and keeps nothing of data. It fails, with [ErrGarbage], if data
// is of another format, is cut off, goes on after its end, or holds numbers that Apply cannot
// have left. Then s is garbage, too: Apply takes the key for full to the brim, and keeps the
// limits that were set for all if they could be read.
func (s *Stored) UnmarshalBinary(data []byte) error {
	*s = Stored{}
	if err := s.read(data); err != nil {
		*s = Stored{State: State{Speed: -1}}
		return err
	}
	if !s.missing() && (len(s.Limits) == 0 || !s.sound(nil, s.State.At)) {
		s.State.Speed = -1
		return fmt.Errorf("%w: a number out of range", ErrGarbage)
	}
	return nil
}

func (s *Stored) append(b []byte) []byte {
	st := &s.State
	if st.Logs == nil {
		b = append(b, format)
	} else {
		b = append(b, formatLogs)
	}
	b = binary.AppendVarint(b, int64(st.At))
	b = binary.AppendVarint(b, int64(st.At-st.Born))
	b = binary.AppendVarint(b, int64(st.Skip))
	b = binary.AppendVarint(b, int64(st.Rem))
	b = binary.AppendVarint(b, int64(st.Last))
	b = appendFloat(b, st.Speed)
	b = binary.AppendVarint(b, st.Epoch-int64(st.Born))
	b = binary.AppendVarint(b, int64(st.Fails))
	b = append(b, st.Why)
	b = st.Row.append(b, st.At)
	b = binary.AppendUvarint(b, uint64(len(s.Limits)))
	for i := range s.Limits {
		b = s.Limits[i].append(b)
		if i < Max { // more cannot be read
			b = st.Level[i].append(b)
		}
	}
	b = binary.AppendVarint(b, s.Stamp)
	b = binary.AppendVarint(b, s.Version)
	b = appendFloat(b, s.Lead)
	b = binary.AppendUvarint(b, uint64(len(s.Others)))
	for i := range s.Others {
		o := &s.Others[i]
		b = binary.AppendVarint(o.Level.append(o.Limit.append(b)), int64(o.Dial))
	}
	if st.Logs != nil {
		b = st.Logs.append(b, st.Dial())
	}
	return b
}

func (r *Row) append(b []byte, at time.Duration) []byte {
	b = appendFloat(b, r.Top)
	if r.Top == 0 {
		return b // there is no row
	}
	b = binary.AppendVarint(b, r.Calls)
	b = binary.AppendVarint(b, r.Refused)
	b = appendFloat(b, r.Per)
	b = appendFloat(b, r.Fast)
	b = binary.AppendVarint(b, r.Trust)
	return binary.AppendVarint(b, int64(r.Until-at))
}

func (l *Limit) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(l.Name)))
	b = append(b, l.Name...)
	kind := int64(l.Kind)*(MaxUnit+1) + int64(l.Unit)
	if l.Unnamed {
		kind += kinds
	}
	b = binary.AppendVarint(b, kind)
	b = appendFloat(b, l.Capacity)
	b = appendFloat(b, l.Rate)
	b = binary.AppendVarint(b, int64(l.Window))
	b = appendFloat(b, l.N)
	if l.Kind.Calendar() {
		b = binary.AppendUvarint(b, uint64(len(l.Zone)))
		b = append(b, l.Zone...)
	}
	return b
}

func (l *Level) append(b []byte) []byte {
	return appendFloat(appendFloat(appendFloat(b, l.Level), l.Ret), l.Top)
}

func appendFloat(b []byte, x float64) []byte {
	return binary.AppendUvarint(b, bits.ReverseBytes64(math.Float64bits(x)))
}

// read reads what append has written, and checks no number.
func (s *Stored) read(data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("%w: no bytes", ErrGarbage)
	}
	if data[0] < format || data[0] > formatLogs {
		return fmt.Errorf("%w: format %d, want %d", ErrGarbage, data[0], format)
	}
	r := reader{rest: data[1:]}
	st := &s.State
	st.At = r.time()
	st.Born = st.At - r.time()
	st.Skip, st.Rem, st.Last = r.time(), r.time(), r.time()
	st.Speed = r.float()
	st.Epoch = int64(st.Born) + r.int()
	st.Fails, st.Why = int(r.int()), r.byte()
	if st.Row.Top = r.float(); st.Row.Top != 0 {
		st.Row.Calls, st.Row.Refused = r.int(), r.int()
		st.Row.Per, st.Row.Fast = r.float(), r.float()
		st.Row.Trust, st.Row.Until = r.int(), st.At+r.time()
	}
	if n := r.count(Max); n > 0 {
		s.Limits = make([]Limit, n) // others may hold the old ones
		for i := range s.Limits {
			s.Limits[i], st.Level[i] = r.limit(), r.level()
		}
	}
	s.Stamp, s.Version, s.Lead = r.int(), r.int(), r.float()
	if n := r.count(maxOthers); n > 0 {
		s.Others = make([]Other, n)
		for i := range s.Others {
			s.Others[i] = Other{r.limit(), r.level(), r.time()}
		}
	}
	if data[0] != format {
		st.Logs = r.logs(st)
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("%w: %d bytes, which is not their length, or a number that is none", ErrGarbage, len(data))
	}
	return nil
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
	if len(r.rest) > 0 && r.rest[0] < 0x80 {
		x := r.rest[0]
		r.rest = r.rest[1:]
		return uint64(x)
	}
	x, n := binary.Uvarint(r.rest)
	if n <= 0 || r.rest[n-1] == 0 {
		return r.fail()
	}
	r.rest = r.rest[n:]
	return x
}

func (r *reader) int() int64 {
	x := r.uint()
	return int64(x>>1) ^ -int64(x&1)
}

func (r *reader) time() time.Duration { return time.Duration(r.int()) }

func (r *reader) float() float64 { return math.Float64frombits(bits.ReverseBytes64(r.uint())) }

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		return byte(r.fail())
	}
	x := r.rest[0]
	r.rest = r.rest[1:]
	return x
}

// count reads the number of limits, or of others, of which there are at most so many.
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
	n := r.int()
	if l.Unnamed = n >= kinds; l.Unnamed {
		n -= kinds
	}
	l.Kind, l.Unit = r.kind(n)
	l.Capacity, l.Rate, l.Window, l.N = r.float(), r.float(), r.time(), r.float()
	if l.Kind.Calendar() {
		l.Zone = r.text()
	}
	return l
}

// kinds is above each number that stands for a kind and a unit.
const kinds = (MaxUnit + 1) * int64(Monthly+1)

// kind returns the kind and the unit that a number stands for.
func (r *reader) kind(n int64) (Kind, int32) {
	if n < 0 || n >= kinds {
		n = int64(r.fail())
	}
	return Kind(n / (MaxUnit + 1)), int32(n % (MaxUnit + 1))
}

func (r *reader) level() Level { return Level{r.float(), r.float(), r.float()} }
