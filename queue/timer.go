package queue

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// arm sets the timer for the next thing to do. mu is held and nobody is busy.
func (q *Queue) arm() {
	if q.list.n == 0 && len(q.tickets)+len(q.back) == 0 {
		q.rest()
		return
	}
	now := time.Now()
	next := time.Duration(1<<63 - 1)
	calm := max(0, q.calm.Sub(now))
	if n := len(q.tickets); n > 0 {
		next = min(q.listenIn(now), q.newsIn(now))
		if q.list.rest != nil && !q.noSlot {
			next = min(next, max(calm, q.clock.Due(q.tickets[n-1]).Sub(now)-q.lowMark()))
		}
	} else if q.list.rest != nil && !q.noSlot {
		next = calm
	}
	if q.noSlot {
		next = min(next, recheck)
		if w := q.list.first; w != nil && !w.deadline.IsZero() {
			next = min(next, w.deadline.Sub(now))
		}
	}
	if q.dirty || len(q.back) > 0 || len(q.tickets) > q.list.n {
		next = 0
	}
	if q.stop == nil {
		q.stop, q.run = q.bucket.OnChange(q.kick), q.pump
		if q.clock.Known() && q.clock.Changed() { // before anybody listened
			q.dirty, q.noSlot, next = true, false, 0
		}
	}
	q.pumpIn(next)
}

// pumpIn has pump called after d, and not before. mu is held.
//
// At once, a goroutine calls it and not a timer: under the race detector, timers
// of no time at all in several goroutines of a testing/synctest bubble crash the
// program, up to Go 1.26 at least, and our users test in such bubbles.
func (q *Queue) pumpIn(d time.Duration) {
	switch {
	case d > 0 && q.timer == nil:
		q.timer = time.AfterFunc(d, q.run)
		return
	case d > 0:
		q.timer.Reset(d)
		return
	case q.timer != nil:
		q.timer.Stop()
	}
	if !q.called {
		q.called = true
		go q.run()
	}
}

// watch sets the timer for what may go while somebody is away on a trip.
func (q *Queue) watch() {
	if len(q.tickets) == 0 || q.stop == nil || q.tickets[0] == q.moved || q.misfits(q.tickets[0]) {
		return
	}
	now := time.Now()
	in := q.clock.Due(q.tickets[0]).Sub(now)
	// Else it waits for what is heard on the trip.
	if ready, _ := q.clock.Ready(q.tickets[0], now); ready || in > 0 {
		q.pumpIn(in)
	}
}

// rest is arm when nobody waits.
func (q *Queue) rest() {
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.stop != nil {
		q.stop()
	}
	q.timer, q.run, q.stop = nil, nil, nil
	q.dirty, q.noSlot, q.full = false, false, nil
	q.vain, q.calm = 0, time.Time{}
	q.clock = outbound.Clock{} // nobody listens: it will be out of date
	if q.empty != nil {
		close(q.empty)
		q.empty = nil
	}
}

// kick is called by the bucket when something has changed.
func (q *Queue) kick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dirty, q.noSlot = true, false
	if !q.busy && q.stop != nil {
		q.pumpIn(0)
	}
}

// deepen makes room on the stack for all that a step calls. A timer's goroutine
// begins with a small stack, which would move three times on the way down: that
// takes as long as half the step. Here it moves once, while hardly anything is on it.
//
//go:noinline
func deepen() {
	var room [12 << 10]byte
	touch(&room)
}

// touch keeps the compiler from leaving the room out.
//
//go:noinline
func touch(room *[12 << 10]byte) { room[0] = 1 }
