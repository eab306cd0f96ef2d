package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/trace"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Queue is an [outbound.Limiter] that lets calls wait for a bucket, first in, first out. It is safe
// for concurrent use. It has no goroutine, and needs no Close to be collected.
type Queue struct {
	bucket *outbound.Bucket
	err    error // what is wrong with the bucket or the Config

	mu sync.Mutex // protects what follows; nobody holds it during a trip to a store
	state
	stats   Stats
	booking outbound.Booking // what a trip carries; it belongs to the goroutine that is pumping
	pumping bool             // a goroutine is in pump: only one makes trips
	called  bool             // a goroutine that runs pump has been started
	timer   *time.Timer      // of the next thing to do; nil: there was none yet
	ignore  func()           // tells the bucket that nobody waits any more; nil: nobody does
	closed  bool             // to newcomers
	empty   chan struct{}    // closed when nobody waits any more; nil: nobody has asked for that
	inJobs  *Queue           // where further requests of jobs wait; nil: there were none
}

// Stats counts calls by their outcome, and describes the waiting calls.
type Stats struct {
	Waiting int // now
	// Oldest is how long the first waiting call has waited.
	Oldest time.Duration
	// NextIn is how long until the first waiting call leaves, by the last reply of the bucket: another
	// process may have caused a hold since. It is 0 if the call is due or no call waits. It is below 0
	// while the time is unknown: a call in flight has to end, or the first reply is not here yet.
	NextIn    time.Duration
	Admitted  uint64 // immediately or after a wait
	Waited    uint64 // of the admitted calls, those that had to wait
	Refused   uint64 // because of MaxLen, MaxWait, a deadline, an invalid cost or an error of the store
	Cancelled uint64 // by their callers, while they waited
	// Late counts reservations that went back because the process used them, or the store's reply
	// arrived, later than Config.Tolerance. Each costs up to a unit's time of throughput. If Late
	// keeps growing, the process is short of CPU and needs a larger Tolerance, or replies of the store
	// are often much later than usual. [outbound.Bucket.Observe] reports how late each was, as
	// outbound.EventLate.
	Late uint64
}

// New returns a queue around a bucket. Several queues may share a bucket, as those of several
// processes do. If b or c is invalid, each Acquire returns an error that is
// [outbound.ErrInvalid].
func New(b *outbound.Bucket, c Config) *Queue {
	q := &Queue{bucket: b, err: c.check(), state: state{config: c, key: b.Key(), shared: b.Shared()}}
	if b == nil {
		q.err = fmt.Errorf("queue: %w: nil Bucket", outbound.ErrInvalid)
	}
	if c.MaxLen == 0 {
		q.config.MaxLen = defaultLen
	}
	return q
}

// Acquire admits the call when the bucket has capacity for it and for all calls ahead. If the call
// would have to wait longer than MaxWait or ctx's deadline, or if MaxLen calls wait, Acquire
// returns immediately: an [*outbound.ThrottledError] with the time until the call could go. For a
// cost that can never go it returns an [*outbound.CostError], and if the store fails an
// [*outbound.StoreError]. If ctx is cancelled during the wait it returns ctx.Err() itself. If ctx's
// deadline passes during the wait, the error is an [*outbound.ThrottledError] too, with a
// RetryAfter of 0, and it is [context.DeadlineExceeded]. The next call gets the reservation. No
// error leaves a charge behind, except a StoreError whose reply was lost.
//
// In an execution trace, such as that of a [runtime/trace.FlightRecorder], a wait is a region of
// the name "dripfeed: wait for a turn".
func (q *Queue) Acquire(ctx context.Context, c outbound.Cost) (p outbound.Permit, err error) {
	// The call waits in this frame. It is small, and all that comes before is in other
	// frames, so that the first 2 KiB of a goroutine's stack are enough.
	q = q.lane(ctx)
	w, err := q.enter(ctx, &c, &p)
	if w == others {
		w, err = q.join(ctx, &c)
	}
	if w == nil {
		return
	}
	if trace.IsEnabled() {
		traced(ctx, w.ready)
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		if err = q.leave(ctx, w); err != nil {
			return
		}
		<-w.ready // the queue has admitted or refused it at the same moment
	}
	err = w.result(&p)
	return
}

// traced is a wait that an execution trace shows. It is no part of Acquire, because a call would
// wait with 4 KiB of stack then.
//
//go:noinline
func traced(ctx context.Context, ready <-chan struct{}) {
	defer trace.StartRegion(ctx, regionName).End()
	select {
	case <-ready:
	case <-ctx.Done():
	}
}

// lane returns the queue in which the call waits: q, or, for further requests of jobs, one of their
// own. In q they would wait behind calls that wait for those jobs to end.
func (q *Queue) lane(ctx context.Context) *Queue {
	if q == nil || q.err != nil || q.booking.InJob || !q.bucket.InJob(ctx) {
		return q
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inJobs == nil {
		q.inJobs = &Queue{bucket: q.bucket, state: state{config: q.config, key: q.key, shared: q.shared}, closed: q.closed}
		q.inJobs.booking.InJob = true
	}
	return q.inJobs
}

// regionName is what a wait is called in an execution trace.
const regionName = "dripfeed: wait for a turn"

// others is what enter returns for a call that is to go behind others.
var others = new(waiter)

// enter admits the call at once, refuses it, or puts it in line and returns it.
func (q *Queue) enter(ctx context.Context, c *outbound.Cost, p *outbound.Permit) (*waiter, error) {
	switch {
	case q == nil:
		return nil, fmt.Errorf("queue: %w: nil Queue", outbound.ErrInvalid)
	case q.err != nil:
		return nil, q.err
	case ctx.Err() == context.DeadlineExceeded:
		q.mu.Lock()
		q.stats.Refused++
		q.mu.Unlock()
		return nil, &outbound.ThrottledError{Key: q.key, Err: ctx.Err()}
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, ErrClosed
	}
	// A trip to a store takes time, and the caller may give up meanwhile. Unused places must
	// go back before the bucket is asked, or it would refuse the call for their sake.
	if q.shared || q.pumping || q.line.n > 0 || len(q.line.unused) > 0 || q.booking.InJob {
		q.mu.Unlock()
		return others, nil
	}
	return q.askLocked(ctx, c, p)
}

// askLocked asks the bucket for a call that comes while nobody waits, and unlocks mu when the
// call has gone or is first in line, so that no other call comes in between. Inside, the
// bucket may tell other queues of a change. None of them can be waiting for this queue,
// which does not listen now.
func (q *Queue) askLocked(ctx context.Context, c *outbound.Cost, p *outbound.Permit) (_ *waiter, err error) {
	if *p, err = q.bucket.Acquire(context.Background(), *c); err == nil {
		q.stats.Admitted++
		q.mu.Unlock()
		return nil, nil
	}
	w, now := q.newWaiter(ctx, c)
	if full := (*outbound.ThrottledError)(nil); !errors.As(err, &full) || full.RetryAfter > within(w.deadline, now) {
		q.stats.Refused++
		q.mu.Unlock()
		return nil, w.refusedBy(err)
	}
	q.line.add(w, false)
	q.mu.Unlock()
	q.pump() // book a place, so that the queue can tell the next call when it could go
	return w, nil
}

// newWaiter returns the call as one that would wait, and the time.
func (q *Queue) newWaiter(ctx context.Context, c *outbound.Cost) (*waiter, time.Time) {
	now := time.Now()
	w := &waiter{cost: *c, came: now.Sub(start), ready: make(chan struct{}), deadline: now.Add(farthest), far: true}
	if q.config.MaxWait > 0 {
		w.deadline, w.far = now.Add(q.config.MaxWait), false
	}
	if d, ok := ctx.Deadline(); ok && (w.far || d.Before(w.deadline)) {
		w.deadline, w.byCtx, w.far = d, true, false
	}
	return w, now
}

// join puts a call at the end of the line, or refuses it.
func (q *Queue) join(ctx context.Context, c *outbound.Cost) (*waiter, error) {
	w, now := q.newWaiter(ctx, c)
	q.mu.Lock()
	w.onlyTrip = q.shared && q.line.n == 0
	if q.closed {
		q.mu.Unlock()
		return nil, ErrClosed
	}
	judged, err := q.admit(w, now)
	if err != nil {
		q.stats.Refused++
		q.mu.Unlock()
		return nil, err
	}
	q.line.add(w, judged)
	if q.line.unplaced == w && !q.pumping {
		q.setTimerLocked()
	}
	q.mu.Unlock()
	return w, nil
}

// leave takes a call whose ctx has ended out of the line and returns why it is not admitted. It
// returns nil if the call was no longer waiting.
func (q *Queue) leave(ctx context.Context, w *waiter) error {
	err := ctx.Err()
	late := errors.Is(err, context.DeadlineExceeded)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.gone:
		return nil
	case late:
		e := q.throttled(w, time.Time{}, time.Now())
		e.Err, err = err, e
		q.stats.Refused++
	default:
		q.stats.Cancelled++
	}
	first := w == q.line.first || w == q.line.unplaced
	if (q.removeLocked(w) || first) && !q.pumping {
		q.line.fit()
		q.setTimerLocked()
	}
	return err
}

// removeLocked takes w out of the line and reports whether w had a place. If the queue pauses until
// the first call without a place can go, that is another one now, unless w was behind it.
func (q *Queue) removeLocked(w *waiter) (hadPlace bool) {
	if !q.head.soonest.IsZero() && (q.line.hasPlace(w) || w == q.line.unplaced) {
		q.head.soonest, q.head.until = time.Time{}, time.Time{}
	}
	return q.line.remove(w)
}

// Len returns the number of calls that wait.
func (q *Queue) Len() int { return q.Stats().Waiting }

// Stats returns the outcomes of calls so far, and the waiting calls. It makes no request to a
// store, and takes the same time however many calls wait.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	s, inJobs := q.stats, q.inJobs
	s.Waiting = q.line.n
	if w := q.line.first; w != nil {
		s.Oldest = time.Since(start) - w.came
		s.NextIn = q.firstIn(time.Now())
	}
	q.mu.Unlock()
	if inJobs != nil { // with no lock held: its changes come here
		s.add(inJobs.Stats())
	}
	return s
}

// add takes in what has become of further requests of jobs.
func (s *Stats) add(in Stats) {
	if in.Waiting > 0 && (s.Waiting == 0 || in.Oldest > s.Oldest) {
		s.Oldest, s.NextIn = in.Oldest, in.NextIn
	}
	s.Waiting += in.Waiting
	s.Admitted += in.Admitted
	s.Waited += in.Waited
	s.Refused += in.Refused
	s.Cancelled += in.Cancelled
	s.Late += in.Late
}

// Bucket returns the bucket that the queue is around, which may be nil.
func (q *Queue) Bucket() *outbound.Bucket {
	if q == nil {
		return nil
	}
	return q.bucket
}

// Idle reports whether no call waits and the bucket is idle. An [outbound.Keyed] calls it before it
// drops a queue. If a Keyed has queues of several keys around one bucket, it drops those in which
// no call waits, however busy the bucket is. The next call of such a key gets a new queue.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	busy := q.line.n > 0 || q.pumping || len(q.line.tickets)+len(q.line.unused) > 0
	inJobs := q.inJobs
	q.mu.Unlock()
	return !busy && (q.bucket == nil || q.bucket.Idle()) && (inJobs == nil || inJobs.Idle())
}

// Shutdown refuses new calls with [ErrClosed] and returns when all waiting calls have left. If ctx
// ends first it returns ctx's error, and the calls still leave.
func (q *Queue) Shutdown(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	if q.empty == nil && (q.line.n > 0 || q.pumping) {
		q.empty = make(chan struct{})
	}
	empty, inJobs := q.empty, q.inJobs
	q.mu.Unlock()
	if inJobs != nil {
		if err := inJobs.Shutdown(ctx); err != nil {
			return err
		}
	}
	if empty == nil {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close refuses new calls and all waiting calls with [ErrClosed]. It does not change admitted
// calls. It always returns nil, and can be called again.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	for q.line.first != nil {
		q.refuseLocked(q.line.first, ErrClosed)
	}
	q.line.fit()
	if !q.pumping {
		q.setTimerLocked()
	}
	inJobs := q.inJobs
	q.mu.Unlock()
	if inJobs != nil {
		return inJobs.Close()
	}
	return nil
}
