package queue

import (
	"sync"
	"time"
)

// behind has the queues that wait until no call waits in another one. Its lock is taken last, and
// those queues are woken in goroutines of their own.
type behind struct {
	mu     sync.Mutex
	queues map[*Queue]struct{}
}

// givesWay reports whether calls wait in a queue that goes before this one. If they do, that queue
// wakes this one when none waits there.
func (q *Queue) givesWay() bool {
	for b := q.config.Behind; b != nil; b = b.config.Behind {
		b.next.add(q) // before the look, or the end of the wait may be missed
		if b.line.waits.Load() {
			return true
		}
	}
	return false
}

func (b *behind) add(q *Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues == nil {
		b.queues = make(map[*Queue]struct{})
	}
	b.queues[q] = struct{}{}
}

// wake has the queues look again.
func (b *behind) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for q := range b.queues {
		delete(b.queues, q)
		go q.look()
	}
}

// look sets the timer for what there is to do.
func (q *Queue) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.line.n > 0 {
		q.setTimerLocked(time.Now())
	}
}
