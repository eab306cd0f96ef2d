package engine_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// rowCarrier is a carrier on rows. It computes the step in this process, and swaps the row.
type rowCarrier struct {
	table  *table
	worker string
}

// newRowStore returns a store on the rows of a table. The store makes one trip for a step,
// makes it exactly once, and ends within timeout.
func newRowStore(t *table, timeout time.Duration) leak.Store {
	c := rowCarrier{table: t, worker: rand.Text()}
	return engine.New(engine.Config{Carrier: c, Timeout: timeout})
}

// write is the row that a trip writes. All attempts of the trip send the same bytes, until
// the carrier knows that the table has not written them and will not.
type write struct {
	mu    sync.Mutex
	is    row           // as last seen
	clock time.Duration // as last seen in this trip
	ready bool
	old   uint64
	new   row
	at    time.Duration
	reply leak.Reply
}

func (c rowCarrier) Compose(t *engine.Trip) {
	is, _ := t.Key.State.(row)
	t.State = &write{is: is}
}

func (c rowCarrier) Send(_ context.Context, _ engine.Node, todo []engine.Attempt) {
	for i := range todo {
		todo[i].Err = c.attempt(&todo[i])
	}
}

var (
	errRace   = errors.New("another worker has written the row meanwhile")
	errPassed = errors.New("a later trip of this worker has been made")
)

func (c rowCarrier) attempt(a *engine.Attempt) error {
	w := a.State.(*write)
	w.mu.Lock()
	if at := max(a.Clock, w.clock); !w.ready && at > 0 {
		w.compute(a, at, c.worker)
	}
	old, new, at := w.old, w.new, w.at
	w.mu.Unlock()
	done, is, clock := c.table.swap(a.Key.Bucket, old, new, at)
	w.mu.Lock()
	defer w.mu.Unlock()
	last := is.last[c.worker]
	if last > a.Seq {
		return errPassed
	}
	same := w.ready && new.token == 0 && is.token == old // the trip has nothing to write
	// Or another attempt has written it, and its reply was lost or is not here yet.
	if done || same || w.ready && last == a.Seq {
		w.is = is
		a.Now, a.Reply = clock, w.reply
		a.Reply.Charges = append(a.Into, w.reply.Charges...)
		return nil
	}
	if old == w.old && new.token == w.new.token { // the time that it was computed for has passed
		w.ready, w.is, w.clock = false, is, clock
	}
	return errRace
}

// compute computes the row after the trip. A refusal and a look write nothing.
func (w *write) compute(a *engine.Attempt, at time.Duration, worker string) {
	bucket := w.is.bucket()
	w.ready, w.old, w.new, w.at = true, w.is.token, row{}, at
	w.reply = a.Op.Apply(&bucket, at)
	if w.reply.Changed || a.Fence {
		last := map[string]int64{worker: a.Seq}
		for other, seq := range w.is.last { // a store that runs for long keeps only the last few
			if other != worker {
				last[other] = seq
			}
		}
		state, _ := bucket.AppendBinary(nil) // never fails
		w.new = row{mrand.Uint64() | 1, state, last}
	}
}

// bucket reads a row. Bytes that it cannot read are garbage, and count as full to the brim.
func (r row) bucket() (s leak.Stored) {
	if r.token != 0 {
		_ = s.UnmarshalBinary(r.state) // after an error Apply takes the bucket for full
	}
	return s
}

func (c rowCarrier) Take(a *engine.Attempt) engine.Verdict {
	switch w := a.State.(*write); {
	case errors.Is(a.Err, errRace):
		return engine.Again
	case a.Err != nil:
		return engine.Later
	default:
		w.mu.Lock()
		defer w.mu.Unlock()
		a.Key.State = w.is
		return engine.Done
	}
}

func (c rowCarrier) Away(cause error) error { return fmt.Errorf("%w: %w", leak.ErrAway, cause) }
