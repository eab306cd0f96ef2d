package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Explain returns when a call of this cost would leave that came to the queue now, and why not
// before, as [outbound.Bucket.Explain] does. The call would leave after the waiting calls, which
// are Ahead of it, and with [Config].Behind after those that are InFront. AtLeast says whether Wait
// is a lower bound, by the last reply of the bucket. Calls that come later to other queues and
// processes are not foreseen. Explain changes nothing. It costs one operation on the bucket,
// however many calls wait. It does not count the further requests of jobs, which wait in a
// line of their own.
func (q *Queue) Explain(ctx context.Context, c outbound.Cost) (outbound.Explanation, error) {
	return q.ExplainLast(ctx, c, 1)
}

// ExplainLast is Explain for the last of n calls of this cost that came now, for plans and
// progress: when will 4,000 calls have left? If n is not from 1 to 1e9, the error is
// [outbound.ErrInvalid].
func (q *Queue) ExplainLast(ctx context.Context, c outbound.Cost, n int) (outbound.Explanation, error) {
	if n < 1 || n > mostExplained {
		return outbound.Explanation{}, fmt.Errorf("queue: %w: %d calls to explain", outbound.ErrInvalid, n)
	}
	ahead := c
	for i := range c {
		ahead[i] = float64(n-1) * max(0, c[i])
	}
	return q.explain(ctx, func() rest { return rest{cost: c, n: n, ahead: ahead} })
}

// rest is the calls that an explanation is about. If n is 0, the last is one of own calls that wait
// already, and ahead is its cost with a minus, so that it is counted once.
type rest struct {
	cost   outbound.Cost // of the last
	n, own int           // calls that are still to come, and those that wait
	ahead  outbound.Cost // of the calls before the last, in all
	mixed  bool          // calls differ
}

// explain is ExplainLast for the rest of some calls. It asks for the rest before the bucket says
// when calls leave, and again when it counts the line: no call that came meanwhile counts twice.
func (q *Queue) explain(ctx context.Context, is func() rest) (outbound.Explanation, error) {
	if err := q.invalid(); err != nil {
		return outbound.Explanation{}, err
	}
	was := is()
	asked := was.cost
	if was.n == 0 { // the bucket has charged it, or the sums count it
		asked = free
	}
	inFront, before := q.inFront()
	q.mu.Lock()
	booked, wait := q.line.unbooked.seq, before
	q.line.addTo(&wait)
	q.mu.Unlock()
	e, k, err := q.bucket.ExplainBeside(ctx, asked, q.config.Headroom, wait.all)
	if err != nil {
		return e, err
	}
	q.mu.Lock()
	now := is()
	before.mixed = before.mixed || now.mixed
	before.add(&now.ahead, 1)
	if q.pumping { // the bucket may have booked what the line still counts
		for i := range q.booking.Costs {
			before.add(&q.booking.Costs[i], -1)
		}
	}
	e.Calls, e.InFront, e.Ahead = now.n, inFront, q.line.n
	e.Unanswered, e.UnansweredAfter = q.callTime.lately()
	at, exact, limit := q.foresee(&k, &now.cost, now.n, now.own, &before)
	exact = exact && inFront == 0 && !q.pumping && booked == q.line.unbooked.seq // else the clock does not count what was booked meanwhile
	exact = exact && was.n == now.n && now.own <= q.line.n                       // nor the line what is on its way
	q.mu.Unlock()
	if (e.Ahead+e.InFront+now.n > 1 || now.n == 0) && (e.Wait >= 0 || e.Because == "in flight") {
		foreseen(&e, time.Until(at), exact, limit)
	}
	return e, nil
}

// The waits of mostExplained calls have a sum that fits a Duration. A wait beyond foreseeable is a
// lower bound.
const mostExplained, foreseeable = 1e9, 100 * 365 * 24 * time.Hour

// foreseen completes the explanation of a bucket with the wait behind other calls.
func foreseen(e *outbound.Explanation, wait time.Duration, exact bool, limit string) {
	own := e.Wait
	e.AtLeast = !exact || own > wait+max(rounding, wait/20)
	if e.Wait = max(own, wait); own < 0 && wait <= 0 {
		e.Wait = own // it is unknown when a call in flight ends
	}
	switch quota := func(s outbound.State) bool { return s.Label() == limit && s.Limit.LeakRate == 0 }; {
	case wait <= own && e.Because != "" && e.InFront == 0, own > 0 && wait-own <= own: // that alone is the longest part
	case own < 0 && wait <= 0 && e.InFront == 0:
	case e.Calls > 1 && e.Ahead+e.InFront == 0, slices.ContainsFunc(e.States, quota):
		e.Because, e.Limit = "limit", limit
	case e.InFront > 0:
		e.Because = "behind"
	case own >= 0: // otherwise it is the end of a call in flight
		e.Because = "booked"
	}
}

// add adds a cost, times sign, to all sums.
func (s *sums) add(c *outbound.Cost, sign float64) {
	for i, n := range c {
		n *= sign
		s.all[i], s.far[i], s.sure[i] = s.all[i]+n, s.far[i]+n, s.sure[i]+n
	}
}

// inFront returns the calls that wait in the queues in front of this one, and what they take of its
// bucket.
func (q *Queue) inFront() (n int, s sums) {
	for b := q.config.Behind; b != nil; b = b.config.Behind {
		b.mu.Lock()
		if n += b.line.n; b.bucket == q.bucket {
			b.line.addTo(&s)
		}
		b.mu.Unlock()
	}
	return n, s
}

// foresee returns a lower bound of when the last of n calls of this cost leaves. It also returns
// whether that is exact, and the limit that the call would wait for. The calls of this line go
// before it. Those that s counts go before it, too: the rest of the n, and those in front.
// If n is 0, it is the last of own calls in this line.
func (q *Queue) foresee(k *outbound.Clock, c *outbound.Cost, n, own int, s *sums) (at time.Time, exact bool, limit string) {
	l := &q.line
	if len(l.unused) > 0 || !k.Known() { // the clock counts what returns
		return q.head.soonest, false, ""
	}
	if n == 0 && l.n > own { // it has at least own-1 calls before it, and it is unknown how many behind it
		if booked := min(own, len(l.tickets)); booked > 0 {
			return k.Due(l.tickets[booked-1]), false, ""
		}
		return q.head.soonest, false, ""
	}
	if booked := len(l.tickets); n == 0 && l.unbooked == &l.end && booked > 0 {
		return k.Due(l.tickets[booked-1]), true, ""
	}
	l.addTo(s)
	at, limit, err := s.bound(k, c)
	at = latest(at, q.head.soonest)
	alike := !s.mixed && (l.unbooked == &l.end || l.unbooked.cost == *c)
	exact = err == nil && time.Until(at) < foreseeable && s.all == s.sure && q.config.Headroom == 0 &&
		k.Surely(c, &s.all, l.n+n-1, alike, at.Add(max(rounding, time.Until(at)/20)))
	return at, exact, limit
}
