package main

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/queue/jobs"
)

// jobSystem is a job system in miniature: every so often it looks for jobs that are due, and
// a few workers run them in order. It stands for the one that you have.
type jobSystem struct {
	every   time.Duration
	workers int
	do      func(ctx context.Context, j *job) error

	mu      sync.Mutex // protects the fields below, and the jobs' while none of them runs
	jobs    []*job
	delayed []*job // those that are put back until their time
	ready   []*job // those that are due, in order
	busy    int    // workers
	undone  int
	failure error // of the first job that failed
	running sync.WaitGroup
}

// job is a job of the system.
type job struct {
	tenant string
	at     time.Time // when it may run
	ticket string    // of its reservation; empty: it has none
	runs   int
	done   time.Time
}

// add has a job run at a time.
func (s *jobSystem) add(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs, s.delayed = append(s.jobs, j), append(s.delayed, j)
	s.undone++
}

// run returns when all jobs are done, or with the error of ctx or of a job.
func (s *jobSystem) run(ctx context.Context) error {
	look := time.NewTicker(s.every)
	defer look.Stop()
	defer s.running.Wait()
	for {
		s.lookForDue()
		s.start(ctx)
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

// lookForDue moves the jobs that are due to the end of those that are ready.
func (s *jobSystem) lookForDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var later []*job
	for _, j := range s.delayed {
		if j.at.After(time.Now()) {
			later = append(later, j)
		} else {
			s.ready = append(s.ready, j)
		}
	}
	s.delayed = later
}

// start gives jobs to the workers that are free.
func (s *jobSystem) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; len(s.ready) > 0 && s.busy < s.workers && ctx.Err() == nil; s.busy++ {
		j := s.ready[0]
		s.ready = s.ready[1:]
		s.running.Go(func() {
			s.attempt(ctx, j)
			s.start(ctx)
		})
	}
}

// attempt runs a job. If the job has no room now, attempt puts it back with its ticket, until its
// turn is near.
func (s *jobSystem) attempt(ctx context.Context, j *job) {
	err := s.do(jobs.WithTicket(ctx, j.ticket), j)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	j.runs++
	if later, ok := jobs.After(err); ok {
		j.ticket, j.at = later.Ticket, time.Now().Add(later.In)
		s.delayed = append(s.delayed, j)
		return
	}
	j.done = time.Now()
	s.undone--
	if s.failure == nil {
		s.failure = err
	}
}

func (s *jobSystem) done() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undone == 0 || s.failure != nil, s.failure
}
