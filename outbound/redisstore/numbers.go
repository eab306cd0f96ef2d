package redisstore

import (
	"encoding/binary"
	"math"
	"time"
)

// numbers appends numbers as the script reads and writes them, in MessagePack: whole ones as
// integers, which are short if they are small.
func numbers(b []byte, x ...float64) []byte {
	for _, f := range x {
		if i := int64(f); float64(i) == f && i != math.MaxInt64 && i != math.MinInt64 {
			b = integers(b, i)
		} else {
			b = binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(f))
		}
	}
	return b
}

func integers(b []byte, x ...int64) []byte {
	for _, i := range x {
		switch {
		case i >= -32 && i < 128:
			b = append(b, byte(i))
		case i >= 0 && i < 1<<16:
			b = binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(i))
		case i >= 0 && i < 1<<32:
			b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(i))
		default:
			b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(i))
		}
	}
	return b
}

// reader reads numbers from the front of a text.
type reader struct {
	text string
	bad  bool // there was none, or one of another kind
}

// next returns the next number, as a float64 and, if it is whole, as an int64.
func (r *reader) next() (f float64, i int64, whole bool) {
	size := 0
	if r.text != "" {
		switch tag := r.text[0]; {
		case tag < 0x80 || tag >= 0xe0:
			r.text = r.text[1:]
			return float64(int8(tag)), int64(int8(tag)), true
		case tag >= 0xca && tag <= 0xd3:
			size = [...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[tag-0xca]
		}
	}
	if size == 0 || len(r.text) <= size {
		r.text, r.bad = "", true
		return 0, 0, true
	}
	var bits uint64
	for k := 1; k <= size; k++ {
		bits = bits<<8 | uint64(r.text[k])
	}
	tag := r.text[0]
	r.text = r.text[size+1:]
	switch {
	case tag == 0xca:
		return float64(math.Float32frombits(uint32(bits))), 0, false
	case tag == 0xcb:
		return math.Float64frombits(bits), 0, false
	case tag >= 0xd0: // it has a sign
		i = int64(bits<<(64-8*size)) >> (64 - 8*size)
	default:
		i = int64(bits)
		r.bad = r.bad || i < 0
	}
	return float64(i), i, true
}

func (r *reader) float() float64 {
	f, _, _ := r.next()
	return f
}

func (r *reader) int() int64 {
	_, i, whole := r.next()
	r.bad = r.bad || !whole
	return i
}

func (r *reader) nanos() time.Duration { return time.Duration(r.int()) }

func (r *reader) micros() time.Duration {
	i := r.int()
	if i > math.MaxInt64/1000 || i < math.MinInt64/1000 {
		i, r.bad = 0, true
	}
	return time.Duration(i) * time.Microsecond
}
