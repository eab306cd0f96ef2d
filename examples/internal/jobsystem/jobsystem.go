// Package jobsystem is a job system in miniature: every so often it looks for jobs that are due,
// and a few workers run them in order. It stands for the one that you have.
package jobsystem

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Poll is how often the system looks.
const Poll = 250 * time.Millisecond

// System is what the jobs of a system do, and how many run at the same time.
type System struct {
	Workers int
	Do      func(ctx context.Context, j *Job) error
	Jobs    []*Job

	mu   sync.Mutex // protects the jobs while none of them runs
	left int
}

// Job is a job of the system.
type Job struct {
	Tenant string
	At     time.Time // when it may run
	Ticket string    // of its reservation, or empty
	Runs   int
	Done   time.Time

	taken bool // by a worker, or it is done
}

// Run returns when all jobs are done, or with the error of ctx or of a job.
func (s *System) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ready := make(chan *Job, len(s.Jobs))
	s.left = len(s.Jobs)
	return calls.Together(s.Workers+1, func(i int) error {
		if i == 0 {
			return s.look(ctx, ready)
		}
		for j := range ready {
			if ctx.Err() == nil {
				s.attempt(ctx, j, stop)
			}
		}
		return nil
	})
}

// look makes the jobs ready that are due, and ends when all are done.
func (s *System) look(ctx context.Context, ready chan<- *Job) error {
	defer close(ready)
	for {
		s.mu.Lock()
		for _, j := range s.Jobs {
			if !j.taken && !j.At.After(time.Now()) {
				j.taken = true
				ready <- j
			}
		}
		left := s.left
		s.mu.Unlock()
		if left == 0 {
			return nil
		}
		if !calls.Sleep(ctx, Poll) {
			return context.Cause(ctx)
		}
	}
}

// attempt runs a job. If the job has no capacity now, attempt puts it back with its ticket until
// shortly before its reservation.
func (s *System) attempt(ctx context.Context, j *Job, stop context.CancelCauseFunc) {
	err := s.Do(jobs.WithTicket(ctx, j.Ticket), j)
	s.mu.Lock()
	defer s.mu.Unlock()
	j.Runs++
	if later, ok := jobs.AsLater(err); ok {
		j.Ticket, j.At, j.taken = later.Ticket, time.Now().Add(later.In), false
		return
	}
	j.Done = time.Now()
	if s.left--; err != nil {
		stop(err)
	}
}

// ByScheduler paces jobs by a Scheduler: a job waits in its worker for the last part of its time.
func ByScheduler(b *outbound.Bucket) outbound.Limiter {
	const headStart = 50 * time.Millisecond
	return jobs.New(b, jobs.Config{PollInterval: Poll, HeadStart: headStart, Early: headStart / 2})
}

// ByQueue paces jobs as one does without a Scheduler: a job waits in its worker at most until the
// system looks again.
func ByQueue(b *outbound.Bucket) outbound.Limiter {
	return early{queue.New(b, queue.Config{MaxWait: Poll})}
}

// early reschedules a job until the last look before it has capacity. Rescheduled for the whole
// time, the job would come up to a look too late, and the queue would have run dry.
type early struct{ *queue.Queue }

func (l early) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := l.Queue.Acquire(ctx, c)
	if later, ok := jobs.AsLater(err); ok {
		return p, &jobs.Later{In: later.In - Poll}
	}
	return p, err
}

// API stands for the API that the jobs call. A call takes 50 ms.
func API(ctx context.Context) error {
	calls.Sleep(ctx, 50*time.Millisecond)
	return ctx.Err()
}
