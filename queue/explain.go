package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Explain says when a call of this cost would go that came to the queue now, and why not before, as
// [outbound.Bucket.Explain] does: it would go after the calls that wait, which are Ahead of it.
// Wait is as exact as the refusals are that the package describes, and else a lower bound, by what
// the queue has heard last. It changes nothing, and costs one operation on the bucket, which is a
// trip if that is shared, however many calls wait.
func (q *Queue) Explain(ctx context.Context, c outbound.Cost) (outbound.Explanation, error) {
	if q == nil {
		return outbound.Explanation{}, fmt.Errorf("queue: %w: Queue", outbound.ErrNil)
	}
	if q.err != nil {
		return outbound.Explanation{}, q.err
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
