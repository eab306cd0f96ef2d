package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/trace"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Queue is an [outbound.Limiter] that lets calls wait for a bucket, first in, first out. It is safe
// for concurrent use. It has no goroutine. The garbage collector frees it without a Close.
type Queue struct {
	bucket *outbound.Bucket
	config Config
	err    error // what is wrong with the Config
	shared bool  // the bucket is in a store

	mu       sync.Mutex // protects what follows; it is free during a request to a store
	line     waiters
	stats    Stats
	clock    outbound.Clock       // at the last request
	requests requestTimes         // how long they take
	head     head                 // what the first call without a reservation waits for
	wasted   int                  // requests that brought no reservation in time, since the last call went
	pause    time.Time            // book nothing before, because of those
	news     int                  // what was returned, or has changed, since the last request that has ended began
	asked    uint64               // the seq of the last call that came before the last request began
	credit   int                  // how many calls may be looked at again
	granted  int                  // three times as many as the reservations that the last bookings got
	booking  outbound.BookRequest // what a request carries; it belongs to the goroutine that is pumping
	pumping  bool                 // a goroutine is in pump: only one makes requests
	called   bool                 // a goroutine that runs pump has been started
	timer    *time.Timer          // of the next thing to do, or nil
	ignore   func()               // unregisters from the bucket, or nil if no call waits
	closed   bool                 // to newcomers
	empty    chan struct{}        // closed when the last call has left; nil before Shutdown
	inJobs   *Queue               // where further requests of jobs wait, or nil

	callTime callTime

	next behind // queues that are behind this one
}

// Stats counts calls by their outcome, and describes the waiting calls.
type Stats struct {
	Waiting int // now
	// Oldest is how long the first waiting call has waited.
	Oldest time.Duration
	// NextIn is how long until the first waiting call leaves, by the last reply of the bucket: another
	// process may have caused a hold since. A call that is due has at least 1 ns. NextIn is 0 if the
	// queue is empty or the time is unknown. It is unknown before the first reply, while the call waits
	// for one in flight to end, and while calls wait in the queue in front.
	NextIn    time.Duration
	Admitted  uint64 // immediately or after a wait
	Waited    uint64 // of the admitted calls, those that had to wait
	Refused   uint64 // by MaxLen, MaxWait, a deadline, an invalid cost, an error of the store, or Close
	Cancelled uint64 // by their callers, while they waited
	// Unanswered counts admitted calls whose ctx deadline passed before they ended: those of the
	// Waited, and a sample of the other calls.
	Unanswered uint64
	// Late counts reservations that went back because the process used them, or the store's reply
	// arrived, later than Config.Tolerance. Each costs up to a unit's time of throughput. If Late
	// keeps growing, the process is short of CPU and needs a larger Tolerance, or replies of the store
	// are often much later than usual. [outbound.Bucket.Observe] reports how late each was, as
	// outbound.EventLate.
	Late uint64
}

// String returns the waiting calls and the outcomes in words, for logs.
func (s Stats) String() string {
	next := "it leaves in " + s.NextIn.String()
	switch {
	case s.Waiting == 0:
		next = "no call"
	case s.NextIn == 0:
		next = "it leaves at an unknown time"
	}
	return fmt.Sprintf("%d waiting, the first for %v (%s), %d admitted, %d of them after a wait, %d refused, %d cancelled, %d unanswered, %d late",
		s.Waiting, s.Oldest, next, s.Admitted, s.Waited, s.Refused, s.Cancelled, s.Unanswered, s.Late)
}

// New returns a queue around a bucket. Several queues may share a bucket, as those of several
// processes do. If b or c is invalid, each Acquire returns an error that is
// [outbound.ErrInvalid].
func New(b *outbound.Bucket, c Config) *Queue {
	q := &Queue{bucket: b, config: c, err: c.check(), shared: b.Shared()}
	q.config.MaxLen = cmp.Or(c.MaxLen, defaultLen)
	q.booking.Weight, q.booking.Headroom = cmp.Or(c.Weight, 1), c.Headroom
	q.line.init(q)
	return q
}

// invalid returns what is wrong with the Queue.
func (q *Queue) invalid() error {
	switch {
	case q == nil:
		return fmt.Errorf("queue: %w: nil Queue", outbound.ErrInvalid)
	case q.bucket == nil:
		return fmt.Errorf("queue: %w: nil Bucket", outbound.ErrInvalid)
	}
	return q.err
}

// Acquire admits the call when the bucket has capacity for it and for all calls ahead. If the call
// would wait beyond MaxWait or ctx's deadline, or if MaxLen calls wait, Acquire returns
// immediately: an [*outbound.ThrottledError] with the time until the call could leave. For a cost
// above a capacity it returns an [*outbound.CostError], and if the store fails an
// [*outbound.StoreError]. If ctx has ended before the call, is cancelled during the wait, or ends
// while the first request to a store is on its way, Acquire returns ctx.Err() itself. If ctx's
// deadline passes while the call waits for capacity, the error is an [*outbound.ThrottledError]
// too, with a RetryAfter of 0, and it is [context.DeadlineExceeded]. The next call gets the
// reservation. No error leaves a charge behind, unless the store fails. What a lost request booked,
// or was to return, stays charged until it leaks or its window ends.
//
// In an execution trace, such as that of a [runtime/trace.FlightRecorder], a wait is a region of
// the name "dripfeed: wait in a queue".
func (q *Queue) Acquire(ctx context.Context, c outbound.Cost) (p outbound.Permit, err error) {
	// The call waits in this frame. It is small, and all that comes before is in other
	// frames, so that the first 2 KiB of a goroutine's stack are enough. Windows need more.
	q = q.lane(ctx)
	done, err := q.ask(ctx, &c, &p)
	if done {
		return
	}
	w, err := q.join(ctx, &c)
	if err != nil {
		return
	}
	if trace.IsEnabled() {
		traced(ctx, w.ready)
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.leave(ctx, w)
	}
	err = q.result(ctx, w, &p)
	return
}

// result returns the result of a call, when it is ready.
func (q *Queue) result(ctx context.Context, w *waiter, p *outbound.Permit) error {
	if <-w.ready; w.err == nil {
		*p = w.ticket.Permit()
		q.measure(ctx, p, true)
	}
	return w.late(ctx, w.err)
}

// late completes a refusal because of ctx's deadline.
func (w *waiter) late(ctx context.Context, err error) error {
	if full, ok := err.(*outbound.ThrottledError); ok && errors.Is(full.Err, context.DeadlineExceeded) {
		full.Late(ctx, start.Add(w.came))
	}
	return err
}

// traced is a wait that an execution trace shows. It is no part of Acquire, because a call would
// wait with 4 KiB of stack then.
func traced(ctx context.Context, ready <-chan struct{}) {
	defer trace.StartRegion(ctx, "dripfeed: wait in a queue").End()
	select {
	case <-ready:
	case <-ctx.Done():
	}
}

// lane returns the queue in which the call waits: q, or, for further requests of jobs, one of their
// own. In q they would wait behind calls that wait for those jobs to end.
func (q *Queue) lane(ctx context.Context) *Queue {
	if q.invalid() != nil || q.booking.InJob || !q.bucket.InJob(ctx) {
		return q
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inJobs == nil {
		config := q.config
		config.Behind = nil // calls there may wait for the end of these jobs
		q.inJobs = New(q.bucket, config)
		q.inJobs.closed, q.inJobs.booking.InJob = q.closed, true
	}
	return q.inJobs
}

// ask asks the bucket for a call that comes while no other waits. done says that the call is
// admitted, or refused whatever the queue does.
func (q *Queue) ask(ctx context.Context, c *outbound.Cost, p *outbound.Permit) (done bool, err error) {
	if err = cmp.Or(q.invalid(), ctx.Err()); err != nil {
		return true, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// A request to a store takes time, and the caller may give up meanwhile. Unused reservations must
	// go back before the bucket is asked, or it would refuse the call for their sake.
	if q.closed || q.booking.InJob || q.shared || !q.idle() || q.givesWay() || q.config.Headroom > 0 {
		return false, nil
	}
	return q.askLocked(ctx, c, p)
}

// askLocked is ask, in a frame of its own because that is large. Inside, the bucket may notify
// other queues of a change. They cannot be waiting for this queue, which is unregistered now.
func (q *Queue) askLocked(ctx context.Context, c *outbound.Cost, p *outbound.Permit) (done bool, err error) {
	if *p, err = q.bucket.Acquire(context.Background(), *c); err == nil {
		q.stats.Admitted++
		q.measure(ctx, p, false)
		return true, nil
	}
	now := time.Now()
	by, why := q.deadline(ctx, now)
	if why == context.DeadlineExceeded {
		by = by.Add(-q.needs(by.Sub(now)))
	}
	full, throttled := errors.AsType[*outbound.ThrottledError](err)
	if throttled && full.RetryAfter <= within(by, now) {
		return false, nil
	}
	if throttled {
		if full.Err = why; why == context.DeadlineExceeded {
			full.Late(ctx, now)
		}
	}
	q.stats.Refused++
	return true, err
}

// deadline returns when a call gives up that comes now, and because of what: its ctx, ErrFar or
// MaxWait (nil).
func (q *Queue) deadline(ctx context.Context, now time.Time) (by time.Time, why error) {
	by, why = now.Add(farthest), ErrFar
	if q.config.MaxWait > 0 {
		by, why = now.Add(q.config.MaxWait), nil
	}
	if d, ok := ctx.Deadline(); ok && (why != nil || d.Before(by)) {
		by, why = d, context.DeadlineExceeded
	}
	return by, why
}

// newWaiter returns the call as one that would wait.
func (q *Queue) newWaiter(ctx context.Context, c *outbound.Cost) *waiter {
	now := time.Now()
	w := &waiter{cost: *c, came: now.Sub(start), ready: make(chan struct{})}
	w.deadline, w.err = q.deadline(ctx, now)
	return w
}

// join puts a call at the end of the line, or refuses it.
func (q *Queue) join(ctx context.Context, c *outbound.Cost) (*waiter, error) {
	w := q.newWaiter(ctx, c)
	q.mu.Lock()
	err := q.admitLocked(w)
	if err != nil && !errors.Is(err, ErrClosed) {
		q.stats.Refused++
	}
	q.mu.Unlock()
	return w, w.late(ctx, err)
}

// leave takes a call whose ctx has ended out of the line, if it still waits.
func (q *Queue) leave(ctx context.Context, w *waiter) {
	err := ctx.Err()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.gone:
	case errors.Is(err, context.DeadlineExceeded):
		w.err = err
		q.refuseLocked(w, q.expired(w, time.Now()))
	default:
		q.stats.Cancelled++
		q.answerLocked(w, err)
	}
}

// refuseLocked takes a call out of the line and answers it with err.
func (q *Queue) refuseLocked(w *waiter, err error) {
	q.stats.Refused++
	q.answerLocked(w, err)
}

// answerLocked is refuseLocked for any reason. If w had a reservation, or was the first call
// without one, there may be something to do sooner, and another call to wait for.
func (q *Queue) answerLocked(w *waiter, err error) {
	ahead := w.seq <= q.line.unbooked.seq
	if ahead && !q.head.soonest.IsZero() {
		q.head = head{}
	}
	if q.line.remove(w); ahead {
		q.setTimerLocked(time.Now())
	}
	w.err = err
	close(w.ready)
}

// Len returns the number of calls that wait.
func (q *Queue) Len() int { return q.Stats().Waiting }

// Stats returns the outcomes of calls so far, and the waiting calls. It makes no request to a
// store, and takes the same time however many calls wait.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	s, inJobs := q.stats, q.inJobs
	s.Unanswered = q.callTime.unanswered.Load()
	s.Waiting = q.line.n
	if w := q.line.end.next; w != &q.line.end {
		s.Oldest = time.Since(start) - w.came
		s.NextIn = q.firstIn(time.Now())
	}
	q.mu.Unlock()
	if inJobs != nil { // with no lock held: its changes come here
		s.add(inJobs.Stats())
	}
	return s
}

// add adds the results of further requests of jobs.
func (s *Stats) add(in Stats) {
	if in.Waiting > 0 && (s.Waiting == 0 || in.Oldest > s.Oldest) {
		s.Oldest, s.NextIn = in.Oldest, in.NextIn
	}
	s.Waiting += in.Waiting
	s.Admitted += in.Admitted
	s.Waited += in.Waited
	s.Refused += in.Refused
	s.Cancelled += in.Cancelled
	s.Unanswered += in.Unanswered
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
// drops a queue. If a Keyed has queues of several keys around one bucket, it drops those without
// waiting calls, however busy the bucket is. The next call of such a key gets a new queue.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	idle, inJobs := q.idle(), q.inJobs
	q.mu.Unlock()
	return idle && (q.bucket == nil || q.bucket.Idle()) && (inJobs == nil || inJobs.Idle())
}

// idle reports whether the queue has nothing to do.
func (q *Queue) idle() bool { return q.line.n == 0 && len(q.line.unused) == 0 && !q.pumping }

// Shutdown refuses new calls with [ErrClosed] and returns when all waiting calls have left. If ctx
// ends first it returns ctx's error, and the calls still leave.
func (q *Queue) Shutdown(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	idle, inJobs := q.idle(), q.inJobs
	if q.empty == nil && !idle {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	q.mu.Unlock()
	if !idle {
		select {
		case <-empty:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if inJobs != nil {
		return inJobs.Shutdown(ctx)
	}
	return nil
}

// Close refuses new calls and all waiting calls with [ErrClosed]. It does not change admitted
// calls. It always returns nil, and can be called again.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	for q.line.n > 0 {
		q.refuseLocked(q.line.end.prev, q.closedError())
	}
	inJobs := q.inJobs
	q.mu.Unlock()
	if inJobs != nil {
		return inJobs.Close()
	}
	return nil
}
