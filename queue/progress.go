package queue

import (
	"context"
	"sync"

	"github.com/dripfeed/dripfeed/outbound"
)

// Progress is a limiter around a queue, for a known number of calls: see [Queue.Progress].
type Progress struct {
	queue *Queue
	mu    sync.Mutex // protects what follows
	left  int        // calls that have not come, or less than 0 if that is unknown
	cost  outbound.Cost
	waits int           // calls that have come and not left
	last  outbound.Cost // of the latest
	mixed bool          // calls have differed
}

// Progress returns a limiter around q for a number of calls that cost so much together. It reports
// how many are left, and when the last leaves. Give it to [outbound.Each], or to what makes the
// calls. Each Acquire is one of them, whatever it returns.
//
//	p := q.Progress(len(files), outbound.Cost{float64(len(files))})
//	for range outbound.Each(ctx, p, outbound.Cost{1}, 8, slices.Values(files), upload) {
//		last, err := p.Last(ctx)
//		fmt.Println(p.Left(), "left, the last in", last.Wait)
//	}
//
// If the number is zero or less, it is unknown.
func (q *Queue) Progress(calls int, cost outbound.Cost) *Progress {
	if calls <= 0 {
		calls = -1
	}
	return &Progress{queue: q, left: calls, cost: cost, last: free}
}

var free = outbound.Cost{outbound.Free, outbound.Free, outbound.Free, outbound.Free}

// Unwrap returns the queue.
func (p *Progress) Unwrap() outbound.Limiter { return p.queue }

// Acquire is [Queue.Acquire].
func (p *Progress) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p.mu.Lock()
	p.mixed = p.mixed || p.last != free && p.last != c
	p.last = c
	p.waits++
	if p.left > 0 {
		p.left--
	}
	for i := range c {
		p.cost[i] -= max(0, c[i])
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waits--
	}()
	return p.queue.Acquire(ctx, c)
}

// Left returns how many calls have not left the queue. It is negative if that is unknown.
func (p *Progress) Left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left < 0 {
		return -1
	}
	return p.left + p.waits
}

// Last explains the last of the calls that are left, as [Queue.ExplainLast] does: they come without
// a pause. Calls is how many they are. If their number is unknown, Wait is negative. If none is
// left, the Explanation is empty. Wait is a lower bound if calls cost more than Progress was
// given, or if the last has come and other calls wait in the queue, too. It knows the limits only:
// if the calls come more slowly than those allow, the last leaves later.
func (p *Progress) Last(ctx context.Context) (e outbound.Explanation, err error) {
	for tries, again := 0, true; again && tries < 3; tries++ {
		was, short := p.rest()
		now := was
		switch {
		case was.n < 0:
			return outbound.Explanation{Wait: -1}, nil
		case was.n+was.own == 0:
			return outbound.Explanation{}, nil
		}
		e, err = p.queue.explain(ctx, func() rest { now, short = p.rest(); return now })
		if err == nil && now.n+now.own == 0 { // the last has left meanwhile
			return outbound.Explanation{}, nil
		}
		e.AtLeast = e.AtLeast || short
		e.Calls = now.n + now.own
		again = err == nil && was.n != now.n // a call has come meanwhile, and may not be counted
	}
	return e, err
}

// rest returns the calls that are left. If they cost more than is left of what Progress was given,
// short is true.
func (p *Progress) rest() (r rest, short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r = rest{cost: p.last, n: p.left, own: p.waits, ahead: p.cost}
	for i := range r.cost {
		switch each := p.cost[i] / float64(r.n); {
		case r.n == 0, each == 0 && r.cost[i] == outbound.Free:
		case each <= 0 && r.cost[i] > 0: // the calls have taken the whole cost before their end
			short = true
		default:
			short = short || !p.mixed && each < r.cost[i]*(1-1e-9)
			r.cost[i] = max(0, each)
		}
		r.ahead[i] = float64(r.n-1) * max(0, r.cost[i])
	}
	r.mixed = p.mixed || r.n > 0 && r.cost != p.last
	return r, short
}
