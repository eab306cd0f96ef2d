package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Explain says when a call of this cost would go that came to the queue now, and why not before, as
// [outbound.Bucket.Explain] does: it would go after the calls that wait, which are Ahead of it. Wait is exact where
// the queue's forecast is, and else a lower bound, by what the queue has heard last. It changes nothing, and costs one
// operation on the bucket, which is a trip if that is shared, and about 1 µs for each call that waits, or 6 µs of a
// window in a store. The queue works on meanwhile. If ctx ends before, the error is its own.
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
	n, at, err := q.foretell(ctx, &c)
	if err != nil && err == ctx.Err() {
		return outbound.Explanation{}, err
	}
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

// foretell returns how many calls wait, and when one goes that comes behind them; zero: nothing is known. It foretells a
// copy of the line, so that others can have the lock.
func (q *Queue) foretell(ctx context.Context, c *outbound.Cost) (n int, at time.Time, err error) {
	type call struct {
		cost outbound.Cost
		by   time.Time
	}
	q.mu.Lock()
	n = q.line.n
	if n == 0 || !q.known() {
		q.mu.Unlock()
		return n, at, nil
	}
	ahead, soonest := q.clock.Forecast(q.line.tickets), q.soonest
	calls := make([]call, 0, n-min(n, len(q.line.tickets)))
	for w := q.line.unplaced; w != nil; w = w.next {
		calls = append(calls, call{w.cost, w.by()})
	}
	q.mu.Unlock()
	for i := range calls {
		if i%1024 == 0 && ctx.Err() != nil {
			return n, at, ctx.Err()
		}
		_, _, _ = ahead.Next(&calls[i].cost, calls[i].by) // who is too late does not count, and will be refused
	}
	at, err = ahead.When(c)
	return n, latest(at, soonest), err
}
