package rowstore

import (
	"errors"
	"time"
)

// key is what the store knows of a bucket's row. The engine's lock protects it.
type key struct {
	name []byte
	row  *row // as it was last seen; nil: it was never seen

	races int           // that it has lost since its last step that went well
	pause time.Duration // after it finds the row locked once more; 0: it has not found it so

	heard uint64        // the last step that is known to be on record; 0: none
	born  time.Duration // the bucket's life at that time
	until time.Duration // before which the row should be there, by the rows' clock
}

// The causes of an EventDataLoss.
var (
	errGone = errors.New("rowstore: the database has lost this bucket, which begins anew and empty: up to one capacity more may go out;" +
		" its row was deleted, or its table was emptied or not logged")
	errOlder = errors.New("rowstore: the database has lost the latest calls of this bucket: as much, up to one capacity, may go out once more;" +
		" it has crashed, a replica that had not heard of them was promoted, or an older copy restored")
)

// see notes how a row is at a time. It returns what the database has lost, or nil.
func (k *key) see(r *row, worker uint64, clock time.Duration) (loss error) {
	if k.heard != 0 {
		number, ok := r.number(worker)
		switch {
		case ok && number < k.heard:
			loss = errOlder
		case !ok && !r.full() && r.bucket.State.Born != k.born && clock < k.until && !r.garbage():
			loss = errGone
		}
		if loss != nil {
			k.heard = 0 // it is told once
		}
	}
	k.row = r
	return loss
}

// wrote notes that a step is on record.
func (k *key) wrote(m *made, clock time.Duration) {
	k.heard, k.born, k.until = m.number, m.row.bucket.State.Born, clock+m.keep
}
