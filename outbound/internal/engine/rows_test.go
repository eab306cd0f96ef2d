package engine_test

import (
	"context"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// table is a database: rows of bytes, and a compare-and-swap, like UPDATE … WHERE key = $1 AND token
// = $2. It has a clock of its own.
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	token uint64 // each write draws another one; 0: there is no row
	state []byte
	last  map[string]int64 // the last trip of each process
}

// swap writes a row if the old one is unchanged, and if the new one was computed for a time
// that is not after the clock's and at most a second before it. It returns the row
// afterwards, and the clock. A new row without a token only looks.
func (t *table) swap(key string, old uint64, new row, at time.Duration) (done bool, is row, clock time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clock = time.Duration(time.Now().UnixNano())
	if t.rows[key].token == old && new.token != 0 && at <= clock && clock-at <= time.Second {
		t.rows[key], done = new, true
	}
	return done, t.rows[key], clock
}

// rowCarrier is a carrier on rows. It computes the step in this process, and swaps the row.
type rowCarrier struct {
	table   *table
	process string
	hot     string // a key whose row other processes always write first
}

// write is what a trip writes. All of its attempts send the same, so that at most one of them
// is carried out.
type write struct {
	old   uint64
	new   row
	at    time.Duration
	reply store.Reply
}

// Compose computes what the trip makes of the row as it was last seen. A refusal and a look
// write nothing, and the very first trip only looks.
func (c rowCarrier) Compose(t *engine.Trip) {
	was, _ := t.Key.State.(row)
	w := &write{old: was.token, at: t.Clock}
	t.State = w
	if t.Clock == 0 {
		return
	}
	bucket := was.bucket()
	w.reply = t.Op.Apply(&bucket, t.Clock)
	if w.reply.Changed || t.Fence {
		last := map[string]int64{c.process: t.Seq}
		for other, seq := range was.last {
			if other != c.process {
				last[other] = seq
			}
		}
		state, _ := bucket.AppendBinary(nil) // never fails
		w.new = row{mrand.Uint64() | 1, state, last}
	}
}

func (c rowCarrier) Send(_ context.Context, todo []engine.Attempt) {
	if c.hot != "" {
		time.Sleep(time.Millisecond)
	}
	for i := range todo {
		a := &todo[i]
		w := a.State.(*write)
		var done bool
		var is row
		done, is, a.Now = c.table.swap(a.Key.Bucket, w.old, w.new, w.at)
		a.Note = is
		a.Recorded = is.last[c.process]
		switch last := a.Recorded; {
		case a.Key.Bucket == c.hot && c.hot != "":
			a.Err = errRace
		case last > a.Seq:
			a.Err = errPassed
		// Or an attempt before this one was carried out, or there is nothing to write.
		case done, last == a.Seq, w.at > 0 && w.new.token == 0 && is.token == w.old:
			a.Reply = w.reply
			a.Reply.Charges = append(a.Into, w.reply.Charges...)
		default:
			a.Err = errRace
		}
	}
}

func (c rowCarrier) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case nil:
		a.Key.State = a.Note
		return engine.Done
	case errRace: // the row that it wanted to replace has changed, or its time has passed
		a.Key.State = a.Note
		return engine.Requeue
	}
	return engine.Later
}

func (c rowCarrier) Unavailable(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
}

// bucket reads a row. One that cannot be read is corrupt: Apply takes the bucket for full.
func (r row) bucket() (s store.Stored) {
	if r.token != 0 {
		_ = s.UnmarshalBinary(r.state)
	}
	return s
}
