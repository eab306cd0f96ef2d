package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Queue is an [outbound.Limiter] that lets calls wait for a bucket, first in,
// first out. It is safe for concurrent use. It has no goroutine, and needs no
// Close to be collected.
type Queue struct {
	bucket *outbound.Bucket
	config Config
	err    error // what is wrong with the two
	shared bool  // the bucket is in a store

	mu      sync.Mutex // protects what follows; never held over a trip to the bucket
	list    list
	tickets []outbound.Ticket // places booked, in order; the i-th is the i-th waiter's
	back    []outbound.Ticket // to give back with the next trip
	lost    int               // of these, those that were late
	latest  time.Duration     // and by how much
	clock   outbound.Clock    // as of the last trip
	busy    bool              // somebody is away on a trip
	moved   outbound.Ticket   // the one that is away to be booked anew
	dirty   bool              // something has changed: listen, and plan anew
	noSlot  bool              // the next call waits for one at once to end
	full    error             // the refusal that has told of it
	vain    int               // trips for nothing since a call has gone last
	calm    time.Time         // not to book before, because of those; zero: there is no need
	timer   *time.Timer       // of the next thing to do; nil: none was needed yet
	stop    func()            // ends what the bucket tells; nil: nobody waits
	run     func()            // pump; set with stop
	called  bool              // a goroutine is about to run pump
	closed  bool              // to newcomers
	empty   chan struct{}     // closed when nobody waits any more; nil: not asked for
	stats   Stats

	// These belong to whoever is busy.
	booking outbound.Booking
	claim   float64       // what it has booked with a backlog; 0: it had none
	granted int           // places that the last booking got
	heard   time.Time     // when the last trip ended
	trip    time.Duration // how long a trip takes, mean
	spread  time.Duration // and its deviation
	after   time.Duration // how far ahead a place is to be, or its reply comes too late
}

// Stats counts what has become of calls.
type Stats struct {
	Waiting   int    // now
	Admitted  uint64 // at once or after a wait
	Waited    uint64 // of the admitted, those that had to wait
	Refused   uint64 // because of MaxLen, MaxWait, a deadline, a bad cost or an error of the store
	Cancelled uint64 // by their ctx, while they waited
	// Late is how often a place was given back because its time had passed by
	// more than the tolerance when the process came to use it, or when the store's
	// reply told of it. Each costs up to a unit's time of throughput: a process in
	// which it keeps growing is short of CPU, and wants a larger Tolerance, or has
	// a store whose replies are often much later than usual. [outbound.Bucket.Changes]
	// tells of each, as outbound.ChangeLate, with how late it was.
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
	q.shared = b != nil && b.Shared()
	if q.config.MaxLen == 0 {
		q.config.MaxLen = defaultLen
	}
	return q
}

// Acquire admits the call when its turn comes and the bucket has room. It
// returns at once, without sleeping in vain, when the call would have to wait
// longer than MaxWait or beyond ctx's deadline, or when MaxLen others wait: an
// [*outbound.ThrottledError] with the time until the call could go. A cost that
// can never go is an [*outbound.CostError], and a store that fails makes it an
// [*outbound.StoreError]. When ctx ends during the wait, the
// error is ctx.Err() itself, and the place is the next one's: it costs nobody
// anything. On every error nothing was charged, but for a store's whose reply was
// lost.
func (q *Queue) Acquire(ctx context.Context, c outbound.Cost) (p outbound.Permit, err error) {
	// What waits, waits in this frame: it is kept small, and what is needed
	// before is in other frames, so that a goroutine's first 2 KiB of stack do.
	var w *waiter
	if w, err = q.enter(ctx, &c, &p); w == nil {
		return
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		if q.cancel(w) {
			err = ctx.Err()
			return
		}
		<-w.ready // admitted or refused at the same moment: that stands
	}
	err = w.result(&p)
	return
}

// enter admits the call at once, or refuses it, or returns it as one that waits.
func (q *Queue) enter(ctx context.Context, c *outbound.Cost, p *outbound.Permit) (*waiter, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, ErrClosed
	}
	// A trip to a store takes time, and the caller may give up meanwhile. What goes
	// back must be back before the bucket is asked, or it would refuse the call for that.
	if q.shared || q.busy || q.list.n > 0 || len(q.back) > 0 {
		w, err := q.join(ctx, c)
		q.mu.Unlock()
		return w, err
	}
	// Nobody waits. The lock is held until the call has gone or stands first in line,
	// so that no other call comes in between.
	var err error
	if *p, err = q.bucket.Acquire(context.Background(), *c); err == nil {
		q.stats.Admitted++
		q.mu.Unlock()
		return nil, nil
	}
	w := q.newWaiter(ctx, c)
	if full := (*outbound.ThrottledError)(nil); !errors.As(err, &full) || full.RetryAfter > within(w.deadline, time.Now()) {
		q.stats.Refused++
		q.mu.Unlock()
		return nil, reason(err, w.deadline, w.byCtx)
	}
	q.list.pushBack(w)
	q.mu.Unlock()
	q.pump() // it books a place, by which those who come next are told when they can go
	return w, nil
}

func (q *Queue) newWaiter(ctx context.Context, c *outbound.Cost) *waiter {
	w := &waiter{cost: *c, ready: make(chan struct{})}
	w.deadline, w.byCtx = q.deadline(ctx)
	return w
}

// load has the booking give back what nobody uses, and hear the clock on. mu is held.
func (q *Queue) load() {
	k := &q.booking
	k.Back, q.back = q.back, k.Back[:0]
	k.Lost, k.Late, q.lost, q.latest = q.lost, q.latest, 0, 0
	k.Clock = q.clock
}

// ready is what every call asks first.
func (q *Queue) ready(ctx context.Context) error {
	if q == nil {
		return fmt.Errorf("queue: %w: Queue", outbound.ErrNil)
	}
	if q.err != nil {
		return q.err
	}
	return ctx.Err()
}

// join puts a call at the end of the list, or refuses it. mu is held.
func (q *Queue) join(ctx context.Context, c *outbound.Cost) (*waiter, error) {
	w := q.newWaiter(ctx, c)
	w.alone = q.shared && q.list.n == 0
	if err := q.admissible(w); err != nil {
		q.stats.Refused++
		return nil, err
	}
	first := q.list.rest == nil
	q.list.pushBack(w)
	if first && !q.busy {
		q.arm()
	}
	return w, nil
}

// admissible says why w is not even to wait.
func (q *Queue) admissible(w *waiter) error {
	var earliest time.Time // at least; zero: nothing is known yet
	// The clock does not know yet of what is about to go back. It tells the first that.
	if q.clock.Known() && (q.list.n > 0 || len(q.back) == 0) {
		var err error
		if earliest, err = q.clock.Earliest(&q.list.ahead, &w.cost); err != nil {
			return err
		}
	}
	switch {
	case q.list.n >= q.config.MaxLen:
		return q.refusal(earliest, ErrFull)
	case w.misses(earliest):
		return q.refusal(earliest, because(w.byCtx))
	}
	return nil
}

// deadline is when a call gives up, and whether that is by its ctx.
func (q *Queue) deadline(ctx context.Context) (at time.Time, byCtx bool) {
	if q.config.MaxWait > 0 {
		at = time.Now().Add(q.config.MaxWait)
	}
	if d, ok := ctx.Deadline(); ok && (at.IsZero() || d.Before(at)) {
		return d, true
	}
	return at, false
}

// within is the longest wait that ends by the deadline.
func within(deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return farthest
	}
	return min(max(0, deadline.Sub(now)), 1<<63-1-rounding) + rounding
}

// rounding is how much later than its deadline a call may go: waits are rounded up,
// to the microsecond in some stores, and each place counts from the one before.
const rounding = 10 * time.Microsecond

func because(byCtx bool) error {
	if byCtx {
		return context.DeadlineExceeded
	}
	return nil
}

// refusal says that a call is not even to wait. The zero time: it is not known
// when it could go.
func (q *Queue) refusal(earliest time.Time, why error) *outbound.ThrottledError {
	e := &outbound.ThrottledError{Key: q.bucket.Key(), Err: why}
	if !earliest.IsZero() {
		e.RetryAfter = max(0, time.Until(earliest))
	}
	return e
}

// reason completes the bucket's refusal of a call that was ready to wait until the
// deadline.
func reason(err error, deadline time.Time, byCtx bool) error {
	var full *outbound.ThrottledError
	switch {
	case !errors.As(err, &full):
	case deadline.IsZero():
		full.Err = ErrFar
	default:
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

// denied reports whether the bucket has refused, and knows why: any other error
// is the store's.
func denied(err error) bool {
	var full *outbound.ThrottledError
	var cost *outbound.CostError
	return errors.As(err, &full) || errors.As(err, &cost)
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

// Idle reports whether nobody waits and the bucket is idle: what an
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
	q.closed = true
	q.refuseAll(ErrClosed)
	if !q.busy {
		q.arm()
	}
	return nil
}
