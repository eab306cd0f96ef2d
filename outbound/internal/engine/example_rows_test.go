package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// table is the database: rows of bytes, and a compare-and-swap, as one UPDATE … WHERE key =
// $1 AND token = $2 makes it. It has a clock of its own.
type table struct {
	mu    sync.Mutex
	rows  map[string]row
	swaps int
}

type row struct {
	token uint64 // another one for each write, at random: 0: there is no row
	bytes []byte
}

func newTable() *table { return &table{rows: make(map[string]row)} }

// swap writes a row if the old one is as it was, and if it was computed for a time that is
// not after the clock's nor long ago. It returns the row as it is then, and the clock. A new
// row without a token: only look.
func (t *table) swap(key string, old uint64, new row, at time.Duration) (done bool, is row, clock time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.swaps++
	clock = time.Duration(time.Now().UnixNano())
	if t.rows[key].token == old && new.token != 0 && at <= clock && clock-at <= 100*time.Millisecond {
		t.rows[key], done = new, true
	}
	return done, t.rows[key], clock
}

// content is what a row holds: the bucket, and the last trip of each worker.
type content struct {
	Bucket leak.Stored
	Last   map[string]int64
}

// rowCarrier is a carrier on rows: it computes the step here, and swaps the row.
type rowCarrier struct {
	table  *table
	worker string
}

// newRowStore returns a store on the rows of a table. It makes one trip for a step, makes it
// exactly once, and ends within timeout.
func newRowStore(t *table, timeout time.Duration) leak.Store {
	c := rowCarrier{table: t, worker: fmt.Sprint(rand.Uint64())}
	return engine.New(engine.Config{Carrier: c, Timeout: timeout})
}

// write is what a trip writes. All of its attempts send the same bytes, until it is known
// that these were not written and will not be.
type write struct {
	mu    sync.Mutex
	is    row // as last seen
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

func (c rowCarrier) Send(ctx context.Context, _ string, todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		for a.Err = c.carryOut(a); errors.Is(a.Err, errRace) && ctx.Err() == nil; {
			a.Err = c.carryOut(a)
		}
	}
}

// errRace says that another worker has written the row meanwhile.
var errRace = errors.New("another worker was first")

func (c rowCarrier) carryOut(a *engine.Attempt) error {
	w := a.State.(*write)
	w.mu.Lock()
	if !w.ready && a.Clock > 0 {
		w.compute(a, c.worker)
	}
	old, new, at := w.old, w.new, w.at
	w.mu.Unlock()
	done, is, clock := c.table.swap(a.Key.Bucket, old, new, at)
	w.mu.Lock()
	defer w.mu.Unlock()
	last := read(is).Last[c.worker]
	if last > a.Seq {
		return errPassed
	}
	// Or another attempt has written it, whose reply is not here yet, or was lost.
	if done || w.ready && last == a.Seq {
		w.is = is
		a.Reply = w.reply
		a.Reply.Charges = append(a.Into, w.reply.Charges...)
		return nil
	}
	if new.token == w.new.token { // its time has passed
		w.ready, w.is, a.Clock = false, is, clock
	}
	return errRace
}

// compute computes what the trip makes of the row.
func (w *write) compute(a *engine.Attempt, worker string) {
	is := read(w.is)
	w.at = max(a.Clock, is.Bucket.State.At)
	w.reply = a.Op.Apply(&is.Bucket, w.at)
	is.Last[worker] = a.Seq
	bytes, _ := json.Marshal(is) // a level is finite
	w.ready, w.old, w.new = true, w.is.token, row{rand.Uint64() | 1, bytes}
}

// read reads a row. What cannot be read is garbage: full to the brim.
func read(r row) (c content) {
	if r.token != 0 && json.Unmarshal(r.bytes, &c) != nil {
		c.Bucket.State.Speed = -1
	}
	if c.Last == nil {
		c.Last = make(map[string]int64)
	}
	return c
}

func (c rowCarrier) Take(a *engine.Attempt) engine.Verdict {
	if a.Err != nil {
		return engine.Later
	}
	w := a.State.(*write)
	w.mu.Lock()
	defer w.mu.Unlock()
	a.Key.State = w.is
	return engine.Done
}

func (c rowCarrier) Away(cause error) error { return fmt.Errorf("%w: %w", leak.ErrAway, cause) }
