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
// In any interval of length W at most Capacity + LeakRate*W units leave, for each limit of
// a bucket: through concurrency, cancels, settles, holds, slow-downs, changes of limits, and
// clocks that step back. A call may leave late, which adds at most LeakRate times its delay:
//
//   - From a queue by the queue's tolerance, which is 5 ms under [Per] and its kin and up to
//     50 ms under other limits, however far away a shared store is.
//   - From a shared bucket alone, which cannot wait, by the way back of the store's reply and
//     100 ms.
//   - From both by half of the difference between a route's way there and its way back.
//
// The guarantee does not cover units beyond what a call acquired ([Permit.Settle]), and a
// shared store whose clock jumps forward, which looks like idleness.
//
// "10 per second" is less simple than it looks. A bucket that holds 10 and leaks 10 per
// second lets nearly 20 through within one second: 10 that it had saved, and 10 that leak
// meanwhile. An API that counts the calls of any second refuses almost half of those. So
// [Per] and its kin have capacity 1 and space calls evenly: those of PerSecond(10) leave
// 101 ms apart. Whichever second the API looks at, it sees at most 10, with 10 ms to spare
// for a network that moves calls closer together. That costs 1 % of the quota. [Limit.Burst]
// lets some go at once, at a lower rate, so that the promise still holds. A literal [Limit]
// spares nothing for the network: there the API's own capacity has to be above the bucket's
// by what leaks in 10 ms.
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
// # Errors
//
// Every error is a value to compare with [errors.Is] or to find with [errors.As], also inside
// the *url.Error of an http.Client:
//
//   - [*ThrottledError], which is [ErrThrottled]: the call has no room now, or not before its
//     deadline or its queue's MaxWait, and is told so at once. It is also
//     [context.DeadlineExceeded], queue.ErrFull or [ErrFull] where that is why. Come back after
//     its RetryAfter; 0 means that nobody knows the time.
//   - [ErrTooLarge]: the cost is above a limit's capacity. Never retry it. Its text says which
//     Burst the cost needs.
//   - [ErrInvalidCost], [ErrInvalidLimit], [ErrInvalidDuration], [ErrInvalidKey], [ErrNil]: a
//     mistake in the program.
//   - The ctx's own error: the context ended while the call waited. The call was charged
//     nothing, and holds nobody up.
//   - queue.ErrClosed: the program closed the queue, because it is shutting down.
//   - [*StoreError]: a shared store failed. The call was not admitted. Room may be lost, and
//     none is gained.
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
