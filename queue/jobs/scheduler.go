package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Scheduler is an [outbound.Limiter] for jobs that can be rescheduled. It is safe for concurrent
// use, has no goroutine, and needs no Close.
type Scheduler struct {
	bucket *outbound.Bucket
	queue  *queue.Queue // it alone admits
	config Config
	err    error // what is wrong with the bucket or the Config
	made   time.Time
	asked  atomic.Int64 // how long after that the bucket was asked last; 0: never

	mu   sync.Mutex
	end  time.Time // of the period in which no job can reserve any more
	told float64   // how many jobs are to come then
}

// Config configures a [Scheduler]. The zero value fits a job system that looks for due jobs every 5
// s.
type Config struct {
	// Poll is the poll interval: how long the job system may take to hand out a job that is due. If
	// Poll is zero, it is 5 s.
	Poll time.Duration
	// Lead is the head start: how long before its reservation a job runs. As many jobs wait in
	// workers as the limits admit in that time. A job's context has to last longer. If Lead is
	// zero, it is 1 s.
	Lead time.Duration
	// Early is how much earlier than its head start a job may come without being rescheduled. If
	// Early is zero, it is 100 ms.
	Early time.Duration
	// Ahead is how far away a reservation may be. A job whose reservation would be further away
	// gets none, and books one when it runs again. If Ahead is zero, it is 24 h.
	Ahead time.Duration
	// Queue configures the queue in which jobs wait in their workers. If its MaxWait is zero, it is
	// Poll and two Leads. A Lead above the MaxWait is shortened to it.
	Queue queue.Config
}

// withDefaults returns the Config with what its zeros stand for.
func (c Config) withDefaults() (Config, error) {
	for i, d := range [...]time.Duration{c.Poll, c.Lead, c.Early, c.Ahead} {
		if d < 0 || d > mostConfig {
			return c, fmt.Errorf("jobs: %s %v is not between 0 and %v: %w", [...]string{"Poll", "Lead", "Early", "Ahead"}[i], d, mostConfig, outbound.ErrInvalid)
		}
	}
	c.Poll, c.Lead = cmp.Or(c.Poll, defaultPoll), cmp.Or(c.Lead, time.Second)
	c.Early, c.Ahead = cmp.Or(c.Early, 100*time.Millisecond), cmp.Or(c.Ahead, 24*time.Hour)
	c.Queue.MaxWait = cmp.Or(c.Queue.MaxWait, c.Poll+2*c.Lead)
	if most := c.Queue.MaxWait; most > 0 { // a job that came earlier would be refused, and come again and again
		c.Lead, c.Early = min(c.Lead, most), min(c.Early, most/10)
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
	switch {
	case b == nil:
		s.err = fmt.Errorf("jobs: %w: nil Bucket", outbound.ErrInvalid)
	case s.err != nil:
	case b.Reservations() == nil:
		s.err = errOnlyInFlight
	default:
		// A queue reports what is wrong with its Config before it looks at the context.
		ended, end := context.WithCancel(context.Background())
		end()
		if _, err := s.queue.Acquire(ended, outbound.Cost{}); !errors.Is(err, context.Canceled) {
			s.err = err
		}
	}
	return s
}

var errOnlyInFlight = fmt.Errorf("jobs: no reservations under an InFlight alone: %w", outbound.ErrInvalid)

// Acquire admits the job, perhaps after a short wait, or returns a [*Later]: the job has not run,
// and is to be rescheduled. Pass the ticket of that Later to its next run by [WithTicket]. A job
// without a ticket, or with one that is void, books a reservation behind all others.
//
// An error that is no Later is permanent, such as that of a cost above a limit's capacity.
func (s *Scheduler) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	v := visit{cost: c}
	v.ticket, _ = ctx.Value(ticketKey{}).(string)
	if err := s.find(ctx, &v); err != nil {
		return outbound.Permit{}, s.later(err, &v)
	}
	if in := time.Until(v.due) - s.config.Lead; in > s.config.Early {
		return outbound.Permit{}, &Later{In: in, Ticket: v.ticket, full: &outbound.ThrottledError{Key: s.bucket.Key(), RetryAfter: in + 2*s.config.Lead}}
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

// Queue returns the queue in which jobs wait in their workers. Callers that are no jobs may wait in
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

// Idle reports whether forgetting the Scheduler loses nothing: no job waits, the bucket is idle,
// and nothing is reserved in this process. An [outbound.Keyed] asks this before it drops a
// Scheduler. Where the Keyed has Schedulers of several keys around one bucket, it drops those in
// which no job waits, and keeps the last one: the bucket has the reservations. The reservations of
// a shared bucket are in its store, and outlive the Scheduler.
func (s *Scheduler) Idle() bool { return s == nil || s.queue.Idle() }
