package main

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// fifo is the least that a queue needs: a channel per waiter, a list of them,
// one timer.
type fifo struct {
	interval time.Duration

	mu      sync.Mutex // protects the fields below
	next    time.Duration
	waiters list.List // of chan struct{}
	timer   *time.Timer
}

func newFIFO(perSecond float64) *fifo {
	return &fifo{interval: time.Duration(float64(time.Second) / perSecond)}
}

func (q *fifo) wait(ctx context.Context) error {
	q.mu.Lock()
	now := time.Since(start)
	if q.waiters.Len() == 0 && q.next <= now {
		q.next = now + q.interval
		q.mu.Unlock()
		return nil
	}
	ready := make(chan struct{})
	e := q.waiters.PushBack(ready)
	if q.timer == nil {
		q.timer = time.AfterFunc(q.next-now, q.release)
	} else if q.waiters.Len() == 1 {
		q.timer.Reset(q.next - now)
	}
	q.mu.Unlock()

	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-ready: // both at the same time: the reservation is used up, so use it
		return nil
	default:
		q.waiters.Remove(e)
		return ctx.Err()
	}
}

// release lets all due waiters go, and sets the timer for the next.
func (q *fifo) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Since(start)
	for e := q.waiters.Front(); e != nil && q.next <= now; e = q.waiters.Front() {
		close(q.waiters.Remove(e).(chan struct{}))
		q.next += q.interval
	}
	if q.waiters.Len() > 0 {
		q.timer.Reset(q.next - now)
	}
}
