package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// carrier is an [engine.Carrier]: a trip is a swap of a row.
type carrier struct {
	rows   Rows
	locker Locker // nil if the rows cannot be locked
	config *Config
	worker uint64        // this Store's, in the records of the rows
	worst  worst         // that it has reported
	slots  chan struct{} // the calls of rows at a time
	locks  chan struct{} // those of them that may wait for a lock
}

// The calls of rows at a time: a batch of each of the engine's pipelines, and two that wait for a
// lock.
const maxCalls, maxLocks = 6, 2

// maxRaces is how many races a key loses before its next step locks the row. After the first one the
// store knows the row as it is, and if others seldom write it the next swap is enough. That takes
// two trips, and a lock three.
const maxRaces = 2

// How long a key waits after it has found its row locked, at first and at most.
const firstPause, lastPause = 5 * time.Millisecond, 100 * time.Millisecond

func newCarrier(rows Rows, config *Config) *carrier {
	c := &carrier{rows: rows, config: config, worker: random(), slots: make(chan struct{}, maxCalls), locks: make(chan struct{}, maxLocks)}
	c.locker, _ = rows.(Locker)
	return c
}

// Compose implements [engine.Carrier].
func (c *carrier) Compose(t *engine.Trip) {
	k, _ := t.Key.State.(*key)
	if k == nil {
		k = &key{name: c.config.name(t.Key.Bucket)}
		t.Key.State = k
	}
	s := &step{carrier: c, trip: t, name: k.name, at: t.Clock.Truncate(time.Microsecond), alone: k.alone, skew: k.skew}
	if t.Key.Apart {
		s.lock, s.pause = k.pause == 0, k.pause
	}
	t.State = s
	if k.row == nil || s.at == 0 {
		return
	}
	if s.was = k.row; s.own {
		s.at = max(s.at, s.was.bucket.State.At)
	}
	if !s.lock {
		s.made.make(s, s.was, s.at, 0)
	}
}

// Send implements [engine.Carrier].
func (c *carrier) Send(ctx context.Context, todo []engine.Attempt) {
	first := todo[0].State.(*step)
	if first.lock {
		c.lock(ctx, &todo[0])
		return
	}
	if err := c.swap(ctx, todo); err != nil {
		for i := range todo {
			todo[i].Err = err
		}
		return
	}
	if n, _ := todo[0].Note.(*note); n != nil && n.busy && first.pause > 0 { // it goes apart, so no other key waits
		timer := time.NewTimer(first.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// swap makes attempts at steps, with one call of Swap.
func (c *carrier) swap(ctx context.Context, todo []engine.Attempt) error {
	leave, err := enter(ctx, c.slots)
	if err != nil {
		return err
	}
	defer leave()
	ordered := make([]*engine.Attempt, len(todo)) // attempts are large
	for i := range todo {
		ordered[i] = &todo[i]
	}
	slices.SortFunc(ordered, func(a, b *engine.Attempt) int {
		return bytes.Compare(a.State.(*step).name, b.State.(*step).name)
	})
	swaps := make([]Swap, len(todo))
	for i, a := range ordered {
		s := a.State.(*step)
		if swaps[i] = s.swap(); !s.send() {
			swaps[i].New = nil
		}
		swaps[i].Alone = s.alone && !s.again()
	}
	if err := c.rows.Swap(ctx, swaps); err != nil {
		return err
	}
	arrived := time.Now()
	for i, a := range ordered {
		sw := &swaps[i]
		a.Arrived = arrived
		if sw.Clock <= 0 {
			a.Err = errNoClock
			continue
		}
		s := a.State.(*step)
		fill(a, s.swapped(sw), sw.Clock)
	}
	return nil
}

// lock makes an attempt at a step that locks its row.
func (c *carrier) lock(ctx context.Context, a *engine.Attempt) {
	leave, ok := c.enterLocks(ctx)
	if !ok {
		a.Note, a.Unasked = &note{busy: true}, true
		return
	}
	defer leave()
	leave, err := enter(ctx, c.slots)
	if err != nil {
		a.Err = err
		return
	}
	defer leave()
	s := a.State.(*step)
	sw := Swap{Key: s.name}
	n := &note{row: &row{}, race: true, skew: s.skew}
	if err := c.locker.Lock(ctx, &sw, func() { n = s.locked(ctx, &sw) }); err != nil {
		a.Err = err
		return
	}
	a.Arrived = time.Now()
	switch {
	case sw.Busy:
		n = &note{busy: true, skew: s.skew}
	case sw.Clock <= 0:
		a.Err = errNoClock
		return
	case sw.New != nil && !sw.Done:
		a.Err = errNotDone
		return
	}
	fill(a, n, sw.Clock)
}

// fill writes what an attempt has found.
func fill(a *engine.Attempt, n *note, clock time.Duration) {
	if a.Note = n; clock > 0 {
		a.Now = clock + n.ahead
	}
	worker := a.State.(*step).worker
	if m := n.made; m != nil {
		a.Reply, a.Recorded, a.Keep = m.reply, m.was.trip(worker), m.keep
		a.Reply.Charges = append(a.Into, m.reply.Charges...)
	} else if n.row != nil {
		a.Recorded = n.row.trip(worker)
	}
}

// Take implements [engine.Carrier].
func (c *carrier) Take(a *engine.Attempt) engine.Verdict {
	if a.Err != nil {
		if errors.Is(a.Err, store.ErrUnavailable) || errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled) {
			return engine.Later
		}
		return engine.Denied
	}
	k, s, n := a.Key.State.(*key), a.State.(*step), a.Note.(*note)
	k.own, k.ahead = k.own || n.own, max(k.ahead, n.ahead)
	a.Skew = c.worst.grown(n.ahead)
	k.alone = n.made != nil && !n.race && k.races == 0 && k.pause == 0
	if n.busy {
		k.pause = min(max(2*k.pause, firstPause), lastPause)
		a.Key.Apart = true
		if a.Err = errBusy; s.end() {
			return engine.Requeue
		}
		return engine.Later // the attempt before may be what has locked it
	}
	k.pause = 0
	if k.row = n.row; n.made != nil {
		if a.Key.Apart = s.lock && n.race; !a.Key.Apart { // otherwise other processes still write the row
			k.races = 0
		}
		return engine.Done
	}
	if n.late {
		if a.Err = errLate; !s.end() && a.Now < s.at { // the attempt next to it may come in time
			a.Key.Apart = true
			return engine.Later
		}
	}
	switch {
	case n.lost:
		a.Err = errUnknown
		return engine.Failed
	case n.race:
		a.Err = errRace
		k.races++
	}
	a.Key.Apart = c.locker != nil && k.races >= maxRaces && n.row.token != 0
	return engine.Requeue
}

// Unavailable implements [engine.Carrier].
func (c *carrier) Unavailable(cause error) error {
	if errors.Is(cause, store.ErrUnavailable) || cause == errBusy || cause == errLate { // the database is there
		return cause
	}
	return unavailable(cause)
}

func unavailable(cause error) error {
	return engine.Unavailable("rowstore: the database is unavailable", cause)
}

var (
	errBusy    = errors.New("rowstore: another session keeps the row locked")
	errRace    = errors.New("rowstore: other processes write the row again and again")
	errLate    = errors.New("rowstore: the row's time had passed, or the clock was set, again and again")
	errNoClock = errors.New("rowstore: the rows have returned no time")
	errNotDone = errors.New("rowstore: the row was locked, and not written")
	errUnknown = errors.New("rowstore: the reply was lost, the step may be charged: retrying may charge twice")
)

// enterLocks is enter for a step that locks a row. It waits for a quarter of the time: then other
// keys take too long, and it is no outage.
func (c *carrier) enterLocks(ctx context.Context) (leave func(), ok bool) {
	until, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(until)/4)
	defer cancel()
	leave, err := enter(ctx, c.locks)
	return leave, err == nil
}

// enter waits for other attempts, and returns how to end its own.
func enter(ctx context.Context, turns chan struct{}) (leave func(), err error) {
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, unavailable(fmt.Errorf("no call of the database returns: %w", ctx.Err()))
	}
}
