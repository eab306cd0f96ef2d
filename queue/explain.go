package queue

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Explain returns when a call of this cost would leave that came to the queue now, and why not
// before, as [outbound.Bucket.Explain] does. The call would leave after the waiting calls, which are
// Ahead of it. Wait is as exact as the early refusals that the package describes, and else a lower
// bound, by the last reply of the bucket. Explain changes nothing. It costs one operation on the
// bucket, however many calls wait. It does not count the further requests of jobs, which wait in a
// line of their own.
func (q *Queue) Explain(ctx context.Context, c outbound.Cost) (outbound.Explanation, error) {
	if err := q.invalid(); err != nil {
		return outbound.Explanation{}, err
	}
	e, err := q.bucket.Explain(ctx, c)
	if err != nil {
		return e, err
	}
	q.mu.Lock()
	n, at := q.line.n, time.Time{}
	if n > 0 && q.known() {
		at, _, err = q.clock.Earliest(&c, &q.line.sure)
		at = latest(at, q.head.soonest)
	}
	q.mu.Unlock()
	if e.Ahead = n; n == 0 || e.Wait < 0 || err != nil { // the limits have changed since the last trip
		return e, nil
	}
	if wait := time.Until(at); wait > e.Wait || e.Because == "" {
		held := e.States[0].HeldFor
		if e.Wait = max(e.Wait, wait); held < e.Wait-held || e.Wait == 0 { // else the hold is the longest part
			e.Because = "booked"
		}
	}
	return e, nil
}
