package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Scheduler is an [outbound.Limiter] for jobs that can be rescheduled. It is safe for concurrent
// use. It has no goroutine. It needs no Close.
type Scheduler struct {
	bucket *outbound.Bucket
	queue  *queue.Queue // it alone admits
	config Config
	err    error // what is wrong with the bucket or the Config
	made   time.Time
	asked  atomic.Int64 // how long after that the bucket was asked last, or 0

	mu       sync.Mutex
	end      time.Time // of the period in which no job can reserve any more
	expected float64   // how many jobs should come then
}

// Config configures a [Scheduler]. The zero value fits a job system that looks for due jobs every 5
// s.
type Config struct {
	// PollInterval is how long the job system may take to hand out a job that is due. If
	// PollInterval is zero, it is 5 s.
	PollInterval time.Duration
	// HeadStart is how long before its reservation a job runs. It waits in its worker
	// meanwhile, so keep the limits' rate times HeadStart below the number of workers. A job's context
	// has to last longer. If HeadStart is zero, it is 1 s.
	HeadStart time.Duration
	// Early is how much earlier than its head start a job may come without being rescheduled. If
	// Early is zero, it is 100 ms.
	Early time.Duration
	// Ahead is how far away a reservation may be. A job whose reservation would be further away
	// gets none, and books one when it runs again. If Ahead is zero, it is 24 h.
	Ahead time.Duration
	// Queue configures the queue for jobs that wait in their workers. If its MaxWait is zero, it is
	// PollInterval and two HeadStarts. A HeadStart above the MaxWait is shortened to it.
	Queue queue.Config
}

// withDefaults returns the Config with what its zeros stand for.
func (c Config) withDefaults() (Config, error) {
	for i, d := range [...]time.Duration{c.PollInterval, c.HeadStart, c.Early, c.Ahead} {
		if d < 0 || d > mostConfig {
			return c, fmt.Errorf("jobs: %s %v is not between 0 and %v: %w", [...]string{"PollInterval", "HeadStart", "Early", "Ahead"}[i], d, mostConfig, outbound.ErrInvalid)
		}
	}
	c.PollInterval, c.HeadStart = cmp.Or(c.PollInterval, defaultPoll), cmp.Or(c.HeadStart, time.Second)
	c.Early, c.Ahead = cmp.Or(c.Early, 100*time.Millisecond), cmp.Or(c.Ahead, 24*time.Hour)
	c.Queue.MaxWait = cmp.Or(c.Queue.MaxWait, c.PollInterval+2*c.HeadStart)
	if most := c.Queue.MaxWait; most > 0 { // a job that came earlier would be refused, and come again and again
		c.HeadStart, c.Early = min(c.HeadStart, most), min(c.Early, most/10)
	}
	return c, nil
}

// mostConfig bounds each time of a Config, so that no sum of them overflows.
const defaultPoll, mostConfig = 5 * time.Second, 10 * 365 * 24 * time.Hour

// New returns a Scheduler for a bucket. Several Schedulers may share one bucket, as those of
// several kinds of jobs: they share its reservations. Give them one MaxWait. If b or c is invalid,
// each Acquire returns an error that is [outbound.ErrInvalid]. A bucket
// whose only limit is an [outbound.InFlight] is invalid: no reservation can be made under it.
func New(b *outbound.Bucket, c Config) *Scheduler {
	s := &Scheduler{bucket: b, made: time.Now()}
	s.config, s.err = c.withDefaults()
	s.queue = queue.New(b, s.config.Queue)
	// A queue reports what is wrong with its bucket and its Config before it looks at the context.
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := s.queue.Acquire(ended, outbound.Cost{})
	switch {
	case !errors.Is(err, context.Canceled):
		s.err = err
	case s.err == nil && b.Reservations() == nil:
		s.err = errOnlyInFlight
	}
	return s
}

var errOnlyInFlight = fmt.Errorf("jobs: no reservations under an InFlight alone: %w", outbound.ErrInvalid)

// Acquire admits the job, perhaps after a short wait, or returns a [*Later]: the job has not run,
// and the job system should reschedule it. Pass the ticket of that Later to its next run by
// [WithTicket]. A job without a ticket, or with one that is void, books a reservation behind all
// other jobs.
//
// Other errors are permanent, such as that of a cost above a limit's capacity. If ctx's deadline
// had passed before the call, the error is ctx's own. Within a job of [Do] it is also ctx's own if
// the job has ended ctx itself, or has used up the time of its Do.
func (s *Scheduler) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	v := visit{cost: c}
	v.run, _ = ctx.Value(runKey{}).(context.Context)
	if s != nil && ctx.Err() == context.DeadlineExceeded {
		return outbound.Permit{}, cmp.Or(s.err, ctx.Err())
	}
	v.ticket, _ = ctx.Value(ticketKey{}).(string)
	if err := s.find(ctx, &v); err != nil {
		return outbound.Permit{}, s.later(err, &v)
	}
	if in := time.Until(v.due) - s.config.HeadStart; in > s.config.Early {
		return outbound.Permit{}, &Later{In: in, Ticket: v.ticket, full: &outbound.ThrottledError{Key: s.bucket.Key(), RetryAfter: in + 2*s.config.HeadStart}}
	}
	v.late = time.Since(v.due)
	p, err := s.queue.Acquire(ctx, c)
	if full := (*outbound.ThrottledError)(nil); errors.As(err, &full) && full.RetryAfter > 0 {
		return p, s.behind(ctx, full, &v)
	}
	return p, s.later(err, &v)
}

// SetLimits sets the limits of the bucket, as its own SetLimits does. Where that changes them, all
// tickets are void, and jobs that were rescheduled book again when they come. If the limits are
// higher than before, have the job system run those jobs now: they come at their old times
// otherwise.
func (s *Scheduler) SetLimits(ctx context.Context, limits ...outbound.Limit) error {
	if _, err := s.reservations(ctx); err != nil {
		return err
	}
	if b, err := outbound.NewBucket("", limits...); err == nil && b.Reservations() == nil {
		return errOnlyInFlight
	}
	return s.bucket.SetLimits(ctx, limits...)
}

// Resume ends a hold and a slow-down of the bucket, as its own Resume does. All tickets are void
// then, and jobs that were rescheduled book again when they come.
func (s *Scheduler) Resume(ctx context.Context) error {
	book, err := s.reservations(ctx)
	if err == nil {
		err = s.bucket.Resume(ctx)
	}
	if err == nil {
		err = book.Resume(ctx)
	}
	return err
}

// Queue returns the queue for jobs that wait in their workers. Callers that are no jobs may wait in
// it, too. After its Close each job that waits gets a [*Later].
func (s *Scheduler) Queue() *queue.Queue {
	if s == nil {
		return nil
	}
	return s.queue
}

// Bucket returns the bucket of the Scheduler, so that a job's permit pays for its first request:
// see [outbound.Permit.AcquireIn].
func (s *Scheduler) Bucket() *outbound.Bucket { return s.Queue().Bucket() }

// Idle reports whether it is safe to forget the Scheduler: its bucket and its queue are idle, and
// this process has no reservations. An [outbound.Keyed] asks this before it drops a Scheduler. If
// the Keyed has Schedulers of several keys around one bucket, it drops those without waiting jobs,
// and keeps the last one: the bucket has the reservations. The reservations of a shared bucket are
// in its store, and outlive the Scheduler.
func (s *Scheduler) Idle() bool { return s == nil || s.queue.Idle() }

// Later is the error of a job that has not run: reschedule it to run after In, with Ticket. It is
// not a failure of the job.
type Later struct {
	// In is how long to wait before the job runs again. It may be 0.
	In time.Duration
	// Ticket names the job's reservation. Pass it to the next run by [WithTicket]. A system that
	// does not carry it with the job keeps it for In and an hour. After that the job may as well
	// book again. If Ticket is empty, the job has no reservation.
	Ticket string
	// Err is the reason, unless the job only has to wait. It is a [*outbound.StoreError] if the store
	// is unavailable. At a shutdown it is [queue.ErrClosed] or the ctx's own error. If the
	// reservation would be beyond Config.Ahead, it is an [*outbound.ThrottledError] that is
	// [queue.ErrFull]. If Err is nil, the Later is [outbound.ErrThrottled].
	Err error

	full *outbound.ThrottledError // with a nil Err: what Unwrap returns
}

// Error implements error.
func (l *Later) Error() string {
	return "jobs: the job has not run, retry in " + l.In.String() + ": " + l.Unwrap().Error()
}

// Unwrap returns Err. If that is nil, it returns an error that is [outbound.ErrThrottled]: the
// [*outbound.ThrottledError] of the bucket, or of its reservations. The latter
// has no Limit.
func (l *Later) Unwrap() error {
	if l.Err == nil && l.full != nil {
		return l.full
	}
	return cmp.Or(l.Err, error(outbound.ErrThrottled))
}

// RetryableError is false: run the job after In, not immediately.
func (l *Later) RetryableError() bool { return false }

// AsLater finds a [*Later] in err. It also makes one of the [*outbound.ThrottledError] of a limiter
// that the job itself has met, such as that of its http.Client. With such a Later the job has begun
// to run.
//
// A job whose own time is over has failed, and AsLater returns no Later. That is so if ctx had
// ended when the job asked the limiter, because the error is ctx's own. It is also so if the
// limiter could not admit the call before the deadline, and Ran of the ThrottledError is longer
// than Left. The job's own work has then taken most of its time. That needs a ctx of [Do],
// outbound.Do, Wrap or Each. Elsewhere AsLater takes the limiter for the cause.
func AsLater(err error) (*Later, bool) {
	full, ok := errors.AsType[*outbound.ThrottledError](err)
	if ok && errors.Is(full.Err, context.DeadlineExceeded) && full.Left() < full.Ran() {
		return nil, false
	}
	if l, is := errors.AsType[*Later](err); is {
		return l, true
	}
	if ok {
		return &Later{In: cmp.Or(full.RetryAfter, defaultPoll), Err: err}, true
	}
	return nil, false
}

type ticketKey struct{}

// WithTicket returns a ctx with the ticket of an earlier [Later] or [Run]. A ticket that is
// empty, forged, copied or old changes the order of jobs, and never how many are admitted.
func WithTicket(ctx context.Context, ticket string) context.Context {
	return context.WithValue(ctx, ticketKey{}, ticket)
}

// later makes a Later of an error that is not permanent.
func (s *Scheduler) later(err error, v *visit) error {
	var full *outbound.ThrottledError
	switch {
	case errors.As(err, &full) && full.RetryAfter > s.config.Ahead:
		full.Err = tooFar{}
		return &Later{In: s.again(full.RetryAfter), Err: full}
	case full != nil && full.RetryAfter > 0: // no reservation is made in the next period
		return &Later{In: s.again(full.RetryAfter), full: full}
	case full != nil: // a limit on calls in flight
		return &Later{In: s.config.PollInterval, Ticket: v.ticket, full: full}
	case errors.As(err, new(*outbound.StoreError)):
		return &Later{In: soon(), Ticket: v.ticket, Err: err}
	case errors.Is(err, queue.ErrClosed):
		return &Later{In: s.config.HeadStart, Ticket: v.ticket, Err: err}
	case v.run != nil && v.run.Err() != context.Canceled: // the job has ended its own ctx, or used up its time
	case errors.Is(err, context.Canceled):
		return &Later{Ticket: v.ticket, Err: err}
	case errors.Is(err, context.DeadlineExceeded): // while it waited for a reply of the store
		return &Later{In: soon(), Ticket: v.ticket, Err: err}
	}
	return err
}

// soon is when a job comes again after a failure of the store. All jobs meet that, and are not to
// run again together.
func soon() time.Duration { return time.Second + rand.N(4*time.Second) }

// again returns when a job without a reservation should come again, if it could be admitted after
// wait. If that is further away than Config.Ahead, it is when half of what is reserved now has
// passed, so that as many find a reservation then. Else a period ends after wait. Then the jobs
// come in the order of their Laters, spread over a poll interval.
func (s *Scheduler) again(wait time.Duration) time.Duration {
	if wait > s.config.Ahead {
		return max(wait/2, wait-s.config.Ahead/2, s.config.HeadStart)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := time.Now().Add(wait); end.Sub(s.end).Abs() > s.config.HeadStart {
		s.end, s.expected = end, 0
	}
	s.expected++
	return time.Until(s.end) + time.Duration(float64(s.config.PollInterval)*s.expected/(s.expected+manyExpected))
}

// manyExpected is how many jobs of one period come again in the first half of a poll interval.
const manyExpected = 100

// runKey is the key of a job's ctx with the ctx of its Do.
type runKey struct{}

// Do is [outbound.Do] for adapters of job systems and for jobs in a table of your own. If only the
// job's client is paced, l is [outbound.Unlimited]. Do also reports whether the job has run, and
// how long a failed job should wait before it runs again. That is what the API has asked for, if
// the job's permit has learned it, or a second if the API has refused the call without a time. If
// the job's own time is over, it is the RetryAfter of the limiter: see [AsLater].
func Do(ctx context.Context, l outbound.Limiter, c outbound.Cost, job func(context.Context) error) (ran bool, pause time.Duration, err error) {
	outer := ctx
	var asked atomic.Int64 // atomic, because a permit may be used after the end of its call
	l = outbound.Observe(l, "", func(_ context.Context, e outbound.Event) {
		if e.Kind == outbound.EventHeld && e.Err == nil {
			asked.Store(max(asked.Load(), int64(cmp.Or(e.Hold, time.Second)))) // as a bucket does
		}
	})
	err = outbound.Do(ctx, l, c, func(ctx context.Context) error {
		ran = true
		return job(context.WithValue(ctx, runKey{}, outer))
	})
	pause = time.Duration(asked.Load())
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok && ran {
		if _, later := AsLater(err); !later {
			pause = max(pause, full.RetryAfter)
		}
	}
	return ran, pause, err
}
