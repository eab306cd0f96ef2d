package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Queue is a [outbound.Limiter] that lets calls wait for a bucket, first in,
// first out. It is safe for concurrent use. It has no goroutine, and needs no
// Close to be collected.
type Queue struct {
	bucket *outbound.Bucket
	config Config
	err    error // what is wrong with the two

	mu      sync.Mutex // protects what follows; never held over a trip to the bucket
	list    list
	tickets []outbound.Ticket // places booked, in order; the i-th is the i-th waiter's
	back    []outbound.Ticket // to give back with the next trip
	clock   outbound.Clock    // as of the last trip
	heard   bool              // there was one
	busy    bool              // somebody is away on a trip
	dirty   bool              // something has changed: listen, and plan anew
	noSlot  bool              // the next call waits for one at once to end
	timer   *time.Timer       // of the next thing to do; nil: nobody waits
	stop    func()            // ends what the bucket tells; set with timer
	closed  bool              // to newcomers
	cut     bool              // to those who wait as well
	empty   chan struct{}     // closed when nobody waits any more; nil: not asked for
	stats   Stats

	// These belong to whoever is busy.
	booking outbound.Booking
	one     [1]outbound.Cost
	trip    time.Duration // how long a trip takes, mean
	spread  time.Duration // and its deviation
}

// Stats counts what has become of calls.
type Stats struct {
	Waiting   int    // now
	Admitted  uint64 // at once or after a wait
	Waited    uint64 // of the admitted, those that had to wait
	Refused   uint64 // because of MaxLen, MaxWait, a deadline or a bad cost
	Cancelled uint64 // by their ctx, while they waited
	// Late is how often a place was given back because its time had passed by
	// more than the tolerance when the process came to use it. Each costs up to
	// a unit's time of throughput: a process in which it keeps growing is short
	// of CPU, and wants a larger Tolerance.
	Late uint64
}

// New returns a queue around a bucket. Several queues may share one; each is
// like a worker of its own. What is wrong with b or c, Acquire returns: an
// error that is [outbound.ErrNil] or [outbound.ErrInvalidLimit].
func New(b *outbound.Bucket, c Config) *Queue {
	q := &Queue{bucket: b, config: c, err: c.check()}
	if b == nil {
		q.err = fmt.Errorf("queue: %w: Bucket", outbound.ErrNil)
	}
	if q.config.MaxLen == 0 {
		q.config.MaxLen = defaultLen
	}
	return q
}

// Acquire admits the call when its turn comes and the bucket has room. It
// returns at once, without sleeping in vain, when the call would have to wait
// longer than MaxWait or beyond ctx's deadline, or when MaxLen others wait: a
// [*outbound.ThrottledError] with the time until the call could go. A cost that
// can never go is a [*outbound.CostError]. When ctx ends during the wait, the
// error is ctx.Err() itself, and the place is the next one's: it costs nobody
// anything. On every error nothing was charged.
func (q *Queue) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	if q == nil {
		return outbound.Permit{}, fmt.Errorf("queue: %w: Queue", outbound.ErrNil)
	}
	if q.err != nil {
		return outbound.Permit{}, q.err
	}
	if err := ctx.Err(); err != nil {
		return outbound.Permit{}, err
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return outbound.Permit{}, ErrClosed
	}
	if q.list.n > 0 || q.busy {
		w, err := q.join(ctx, c)
		q.mu.Unlock()
		if err != nil {
			return outbound.Permit{}, err
		}
		return q.wait(ctx, w)
	}
	// Nobody waits: straight to the bucket, with the others behind.
	q.busy = true
	q.mu.Unlock()
	return q.straight(ctx, c)
}

// join puts a call at the end of the list, or refuses it. mu is held.
func (q *Queue) join(ctx context.Context, c outbound.Cost) (*waiter, error) {
	now := time.Now()
	deadline, byCtx := q.deadline(ctx, now)
	var earliest time.Time
	if q.heard {
		var err error
		if earliest, err = q.clock.Earliest(q.list.ahead, c); err != nil {
			q.stats.Refused++
			return nil, err
		}
	}
	if q.list.n >= q.config.MaxLen {
		q.stats.Refused++
		return nil, q.refusal(earliest.Sub(now), ErrFull)
	}
	if !deadline.IsZero() && earliest.After(deadline) {
		q.stats.Refused++
		return nil, q.refusal(earliest.Sub(now), because(byCtx))
	}
	w := &waiter{cost: c, deadline: deadline, byCtx: byCtx, ready: make(chan struct{})}
	first := q.list.rest == nil
	q.list.pushBack(w)
	if first && !q.busy {
		q.arm()
	}
	return w, nil
}

// straight asks the bucket for a place now, or for the next one. The caller
// has set busy.
func (q *Queue) straight(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	now := time.Now()
	deadline, byCtx := q.deadline(ctx, now)
	q.one[0] = c
	q.booking.Costs = q.one[:]
	q.booking.Wait, q.booking.Horizon = within(deadline, now), 0
	err := q.book()

	q.mu.Lock()
	q.busy = false
	defer func() {
		q.arm()
		q.mu.Unlock()
	}()
	w := &waiter{cost: c, deadline: deadline, byCtx: byCtx}
	switch {
	case err == nil:
		t := q.booking.Tickets[0]
		if ready, _ := q.clock.Ready(t, time.Now()); ready && !q.cut {
			q.stats.Admitted++
			return t.Permit(), nil
		}
		w.ready = make(chan struct{})
		q.list.pushFront(w)
		q.list.place()
		q.tickets = append(q.tickets, t)
	case slotless(err):
		w.ready = make(chan struct{})
		q.list.pushFront(w)
		q.noSlot = true
	default:
		q.stats.Refused++
		return outbound.Permit{}, reason(err, byCtx)
	}
	if q.cut {
		q.refuseAll(ErrClosed)
	}
	q.arm()
	q.mu.Unlock()
	defer q.mu.Lock()
	return q.wait(ctx, w)
}

// wait waits for w's turn.
func (q *Queue) wait(ctx context.Context, w *waiter) (outbound.Permit, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.mu.Lock()
		if !w.gone {
			q.cancel(w)
			q.mu.Unlock()
			return outbound.Permit{}, ctx.Err()
		}
		q.mu.Unlock() // admitted or refused at the same moment: that stands
		<-w.ready
	}
	if w.err != nil {
		return outbound.Permit{}, w.err
	}
	return w.ticket.Permit(), nil
}

// deadline is when a call gives up, and whether that is by its ctx.
func (q *Queue) deadline(ctx context.Context, now time.Time) (at time.Time, byCtx bool) {
	if q.config.MaxWait > 0 {
		at = now.Add(q.config.MaxWait)
	}
	if d, ok := ctx.Deadline(); ok && (at.IsZero() || d.Before(at)) {
		return d, true
	}
	return at, false
}

// within is the longest wait that ends by the deadline.
func within(deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return 1<<63 - 1
	}
	return max(0, deadline.Sub(now))
}

func because(byCtx bool) error {
	if byCtx {
		return context.DeadlineExceeded
	}
	return nil
}

// refusal says that a call is not even to wait.
func (q *Queue) refusal(after time.Duration, why error) error {
	return &outbound.ThrottledError{Key: q.bucket.Key(), RetryAfter: max(0, after), Err: why}
}

// reason completes the bucket's refusal of a call that was ready to wait.
func reason(err error, byCtx bool) error {
	var full *outbound.ThrottledError
	if errors.As(err, &full) {
		full.Err = because(byCtx)
	}
	return err
}

// slotless reports whether the bucket has refused for want of a place among
// the calls at once, whose end nobody knows.
func slotless(err error) bool {
	var full *outbound.ThrottledError
	return errors.As(err, &full) && full.RetryAfter == 0
}

// Len returns the number of calls that wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.list.n
}

// Stats returns what has become of calls so far.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Waiting = q.list.n
	return s
}

// Idle reports whether nobody waits and the bucket is idle: what a
// [outbound.Keyed] asks before it drops a queue.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	busy := q.list.n > 0 || q.busy || len(q.tickets)+len(q.back) > 0
	q.mu.Unlock()
	return !busy && (q.bucket == nil || q.bucket.Idle())
}

// Shutdown refuses newcomers with [ErrClosed] and returns when all who wait
// have gone, or with ctx's error when that ends first; they still go then.
func (q *Queue) Shutdown(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	if q.list.n == 0 && !q.busy {
		q.mu.Unlock()
		return nil
	}
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	q.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close refuses newcomers and all who wait with [ErrClosed]. Calls that were
// admitted are not touched. It always returns nil, and can be called again.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.cut = true, true
	q.refuseAll(ErrClosed)
	if !q.busy {
		q.arm()
	}
	return nil
}
