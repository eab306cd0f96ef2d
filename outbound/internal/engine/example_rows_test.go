package engine_test

import (
	"context"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rowCarrier is a carrier on rows. It computes the step in this process, and swaps the row.
type rowCarrier struct {
	table  *table
	worker string
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
		last := map[string]int64{c.worker: t.Seq}
		for other, seq := range was.last { // a store that runs for long keeps the last few only
			if other != c.worker {
				last[other] = seq
			}
		}
		state, _ := bucket.AppendBinary(nil) // never fails
		w.new = row{mrand.Uint64() | 1, state, last}
	}
}

func (c rowCarrier) Send(_ context.Context, todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		w := a.State.(*write)
		var done bool
		var is row
		done, is, a.Now = c.table.swap(a.Key.Bucket, w.old, w.new, w.at)
		a.Note = is
		a.Recorded = is.last[c.worker]
		switch last := a.Recorded; {
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

var (
	errRace   = errors.New("other workers write the row again and again")
	errPassed = errors.New("a later trip of this worker has been made")
)

func (c rowCarrier) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case nil:
		a.Key.State = a.Note
		return engine.Done
	case errRace: // the row that it wanted to replace is there no more, or its time has passed
		a.Key.State = a.Note
		return engine.Anew
	}
	return engine.Later
}

func (c rowCarrier) Unavailable(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
}

// bucket reads a row. What cannot be read is garbage: full to the brim.
func (r row) bucket() (s store.Stored) {
	if r.token != 0 {
		_ = s.UnmarshalBinary(r.state) // after an error Apply takes the bucket for full
	}
	return s
}
