package jobs

import (
	"slices"
	"sync"
	"time"
)

// crowd are the jobs that wait at the gate.
type crowd struct {
	mu   sync.Mutex
	jobs map[*stay]struct{}
}

func (c *crowd) add(s *stay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = make(map[*stay]struct{})
	}
	c.jobs[s] = struct{}{}
}

func (c *crowd) remove(s *stay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, s)
}

// median returns when the job in the middle of them was due, or false if none waits. One that is very late
// does not move it.
func (c *crowd) median() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) == 0 {
		return time.Time{}, false
	}
	due := make([]time.Time, 0, len(c.jobs))
	for s := range c.jobs {
		due = append(due, s.due)
	}
	slices.SortFunc(due, time.Time.Compare)
	return due[len(due)/2], true
}

// latest returns when the last of them is due; the zero Time if none waits.
func (c *crowd) latest() (due time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.jobs {
		if s.due.After(due) {
			due = s.due
		}
	}
	return due
}
