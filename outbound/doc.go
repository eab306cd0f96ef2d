// Package outbound paces calls to other people's APIs with leaky buckets: as
// fast as the API allows, and not one call faster.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//
//	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
//	if err != nil {
//		return err // *ThrottledError: come back after its RetryAfter
//	}
//	defer permit.Done()
//
// Most programs do not call Acquire themselves. Package transport wraps an
// http.Client, [Do], [Wrap] and [Each] wrap jobs, and package queue makes calls
// wait for their turn where a bucket refuses them at once.
//
// # The guarantee
//
// In any interval of length W at most Capacity + LeakRate*W units go out, for
// each limit of a bucket: through concurrency, returns, holds, slow-downs,
// changes of limits, and clocks that step back. Calls that waited in a queue may
// leave late by its tolerance τ, which adds at most LeakRate*τ. What is not
// covered: units beyond what a call acquired ([Permit.Settle]), and a shared
// store whose clock jumps forward, which looks like idleness.
//
// APIs that allow "n per window" count what they see in windows of their own. A
// bucket of capacity n that leaks n per window lets 2n through in one of them:
// n that had saved up, and n that leak meanwhile. [Per] and its kin therefore
// have capacity 1 and leave the API never more than n in any window; [Limit.Burst]
// buys a burst with some of the rate.
//
// # Limits, units, costs
//
// A [Bucket] has one to eight limits, each on one of up to four units: calls,
// tokens, money. A [Cost] has a number for each unit. A call is charged to all
// limits or to none, and one that waits for one limit fills the others when it
// goes. [AtOnce] limits calls in progress; with a queue of its own it goes around the
// limiters that count calls per time, which are next to the call: see package queue.
//
// # Gate and meter
//
// [Bucket.Acquire] is the gate: it fills only if there is room. [Bucket.Fillup] is
// the meter: it always fills, up to the brim, and tells the level, for spending or
// error rates. [Bucket.AbleToAccept] and [Bucket.State] look and change nothing.
//
// # What the API answers
//
// [Permit.Settle] gives units back, or adds some, when a call's real cost is known.
// [Permit.Refused] tells the bucket of a 429: nothing goes until the API's pause is
// over, then calls drip at a clock that is slower for a while. Refusals that slowing
// down does not make fewer soon slow down no more. [Permit.Hold] pauses without
// slowing down. [Permit.Answered] says all that an API can say: what remains of a quota,
// why a call was refused, or that no answer came. Package transport does this for HTTP.
//
// # Jobs
//
// A job that has no room gets a [*ThrottledError] with the time to come back. Do not
// put many jobs back on a bare bucket at their RetryAfter: they all come back at
// once, one goes, and the rest are put back again. 1 000 jobs at 10 per second cost
// 500 500 attempts. Put a queue around the bucket whose MaxWait is at least the
// interval in which the job system looks for work, and put a refused job back until
// the last look before its RetryAfter: with 5 s it is 10 481 attempts. See [Wrap].
//
// # Metrics and logs
//
// [Observe] tells what happens to calls, and [Bucket.Changes] what happens to a bucket:
// holds, whoever has caused them, and their end, slow-downs, new limits, calls that were
// forgotten and places that came too late.
//
// # Coming from others
//
// What golang.org/x/time/rate calls Allow is [Bucket.Acquire], Reserve is
// [Bucket.Book], and Wait is a queue. redis_rate's AllowAtMost, which takes as many of n
// as there is room for, has no equal: a [Booking] of n costs of one with no Horizon takes
// as many as may go now. Nor has its Reset, because an API does not forget what it has
// counted: [Bucket.Resume] ends a hold and a slow-down, and refills nothing.
//
// # Where state lives
//
// [NewBucket] makes a bucket of this process; a decision is one compare-and-swap.
// [NewSharedBucket] keeps the state in a [Store], where all buckets of a key are
// one. What every store does is [Op.Apply], a pure function, and the package
// outboundtest examines stores.
package outbound
