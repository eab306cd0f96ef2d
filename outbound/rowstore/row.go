package rowstore

import (
	"encoding/binary"
	"slices"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// row is a row as the store reads it. It does not change once it is shared.
type row struct {
	token  uint64 // 0 without a row
	bucket store.Stored
	last   []record // of the workers that wrote it last, the latest first
}

// record is the last step of a worker that the row holds.
type record struct {
	worker uint64
	number uint64 // see numberOf
}

// maxRecords is how many workers a row remembers.
const maxRecords = 32

// format is the first byte of a row. Nothing is released yet: until then it stays 1.
const format = 1

// append appends the row's bytes to b: the format, the number of records, each worker and its
// number, and the bucket.
func (r *row) append(b []byte) []byte {
	b = append(slices.Grow(b, 2+16*len(r.last)), format, byte(len(r.last)))
	for _, l := range r.last {
		b = binary.LittleEndian.AppendUint64(b, l.worker)
		b = binary.AppendUvarint(b, l.number)
	}
	b, _ = r.bucket.AppendBinary(b) // never fails
	return b
}

// read returns the row of these bytes. If they are corrupt, so is the bucket, which Apply takes for
// full.
func read(from Row) *row {
	r := &row{token: from.Token}
	if r.token == 0 {
		return r
	}
	b := from.Bytes
	if len(b) < 2 || b[0] != format || b[1] > maxRecords {
		_ = r.bucket.UnmarshalBinary(nil) // which makes it corrupt
		return r
	}
	n := int(b[1])
	b = b[2:]
	for range n {
		if len(b) < 8 {
			b = nil
			break
		}
		number, size := binary.Uvarint(b[8:])
		if size <= 0 {
			b = nil
			break
		}
		r.last = append(r.last, record{binary.LittleEndian.Uint64(b), number})
		b = b[8+size:]
	}
	_ = r.bucket.UnmarshalBinary(b)
	return r
}

// number returns the number of a worker's last step, and whether the row has a record of it.
func (r *row) number(worker uint64) (number uint64, ok bool) {
	for _, l := range r.last {
		if l.worker == worker {
			return l.number, true
		}
	}
	return 0, false
}

// full reports whether the row may have dropped a record.
func (r *row) full() bool { return len(r.last) >= maxRecords }

// trip returns the number of a worker's last trip on record, as [engine.Attempt] has it in Last.
func (r *row) trip(worker uint64) int64 {
	number, ok := r.number(worker)
	if !ok && r.full() {
		return -1
	}
	return int64(number >> tryBits)
}

// next returns the row after a step of a worker. It drops the worker that has not written the
// row for longest, if there are too many.
func (r *row) next(bucket store.Stored, by record, token uint64) *row {
	n := &row{token: token, bucket: bucket, last: make([]record, 1, min(len(r.last)+1, maxRecords))}
	n.last[0] = by
	for _, l := range r.last {
		if l.worker != by.worker && len(n.last) < maxRecords {
			n.last = append(n.last, l)
		}
	}
	return n
}
