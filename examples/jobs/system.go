package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// jobSystem is a job system in miniature: every so often it looks for jobs that are due, and
// runs each in a goroutine. It stands for the one that you have.
type jobSystem struct {
	every time.Duration
	job   func(ctx context.Context, id int) error

	mu       sync.Mutex // protects the fields below
	waiting  []job
	undone   int
	attempts int
	failure  error // of the first job that failed
}

// job is a job that waits for its time.
type job struct {
	id  int
	due time.Time
}

// newJobSystem returns a job system with n jobs that are due now.
func newJobSystem(every time.Duration, n int, do func(ctx context.Context, id int) error) *jobSystem {
	s := &jobSystem{every: every, job: do, undone: n}
	for id := range n {
		s.waiting = append(s.waiting, job{id, time.Now()})
	}
	return s
}

// run returns when all jobs are done, or with the error of ctx or of a job.
func (s *jobSystem) run(ctx context.Context) error {
	look := time.NewTicker(s.every)
	defer look.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, id := range s.takeDue() {
			running.Go(func() { s.attempt(ctx, id) })
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if done, err := s.done(); done {
			return err
		}
	}
}

// attempt runs a job. If the job has no room now, attempt puts it back until the last look
// before it has. Put back for the whole RetryAfter, the job would come up to a look too late,
// and the queue would have run dry meanwhile. The queue lets it wait for the rest.
func (s *jobSystem) attempt(ctx context.Context, id int) {
	err := s.job(ctx, id)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
		s.waiting = append(s.waiting, job{id, time.Now().Add(full.RetryAfter - s.every)})
		return
	}
	s.undone--
	if s.failure == nil {
		s.failure = err
	}
}

// takeDue takes the jobs that are due.
func (s *jobSystem) takeDue() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []int
	var later []job
	for _, j := range s.waiting {
		if j.due.After(time.Now()) {
			later = append(later, j)
		} else {
			due = append(due, j.id)
		}
	}
	s.waiting = later
	return due
}

func (s *jobSystem) done() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undone == 0 || s.failure != nil, s.failure
}
