package outbound

import "sync"

// Estimate predicts the cost of calls whose full cost is known only afterwards, such
// as the tokens of an answer. It adds the moving average of what earlier calls cost beyond
// the known part. Acquire Cost(known), settle what the call really cost, and let Learn
// hear both:
//
//	e := outbound.Estimate{Bucket: bucket, First: outbound.Cost{tokens: 300}}
//	…
//	p, err := bucket.Acquire(ctx, e.Cost(known))
//	…
//	p.Settle(used)
//	e.Learn(known, used)
//
// Too low an estimate sends calls that the API refuses. Too high a one is settled too
// late for others to use. Keep the capacity of such a limit at 6 s of its rate or
// less, or stay at 95 % of the quota. The zero Estimate is ready to use, and an Estimate
// is safe for concurrent use. Change no field after the first use.
type Estimate struct {
	// Bucket is the bucket that the calls acquire from. No estimate is then above the
	// capacity of a limit that is in force. Calls that really cost more still go, and
	// settle the rest; only the known part may be too large. nil: nothing bounds an
	// estimate, and once the average is above a capacity every call is [ErrTooLarge].
	Bucket *Bucket
	// First is what the calls before the first Learn cost beyond their known part. Without it, a
	// known part of 0 in the bucket's first unit is [ErrInvalid] until the first Learn; if it
	// is [Free], all calls until then go immediately, unpaced. Numbers that are no cost count as
	// nothing.
	First Cost
	// Weight is how much the newest call counts, above 0 and at most 1. Others
	// mean 1/20.
	Weight float64

	mu    sync.Mutex // protects what follows
	calls int
	rest  Cost
}

// Cost returns what a call with this known part is expected to cost.
func (e *Estimate) Cost(known Cost) Cost {
	e.mu.Lock()
	rest := e.rest
	if e.calls == 0 && e.First.real() {
		rest = e.First
	}
	e.mu.Unlock()
	most := Cost{maxCapacity, maxCapacity, maxCapacity, maxCapacity}
	if !e.Bucket.unmade() {
		e.Bucket.each(func(unit int, capacity, _ float64) { most[unit] = min(most[unit], capacity) })
	}
	for i, n := range known {
		known[i] = max(n, min(n+rest[i], most[i]))
	}
	return known
}

// Learn takes in what a call has really cost. Numbers that are no cost are ignored.
func (e *Estimate) Learn(known, used Cost) {
	if !known.real() || !used.real() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	weight := e.Weight
	if !(weight > 0 && weight <= 1) {
		weight = 1. / 20
	}
	e.calls++
	weight = max(weight, 1/float64(e.calls)) // at first, the mean of what there is
	for i := range used {
		e.rest[i] += weight * (max(0, used[i]-known[i]) - e.rest[i])
	}
}
