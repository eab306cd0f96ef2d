package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Explain says when a call of this cost would go that came to the queue now, and why not before, as
// [outbound.Bucket.Explain] does: it would go after the calls that wait, which are Ahead of it. While
// some of those have no place yet, Wait is a lower bound, by what the queue has heard last. It changes
// nothing, and costs one operation on the bucket: a trip, if that is shared.
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
	defer q.mu.Unlock()
	if e.Ahead = q.line.n; e.Ahead == 0 || e.Wait < 0 {
		return e, nil
	}
	at, err := q.forecast(&c)
	if err != nil { // the limits have changed since the last trip
		return e, nil
	}
	if wait := time.Until(at); wait > e.Wait || e.Because == outbound.CauseNone {
		if e.Wait = max(e.Wait, wait); e.HeldFor < e.Wait-e.HeldFor || e.Wait == 0 { // else the hold is the longest part
			e.Because = outbound.CauseBooked
		}
	}
	return e, nil
}
