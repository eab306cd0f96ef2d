// Package outbound paces calls to other people's APIs with leaky buckets: as fast as the API
// allows, and not one call faster.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//
//	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
//	if err != nil {
//		return err // *ThrottledError: come back after its RetryAfter
//	}
//	defer permit.Done()
//
// Most programs do not call Acquire themselves. Package transport wraps an http.Client, [Do],
// [Wrap] and [Each] wrap jobs, and package queue makes calls wait for their turn where a bucket
// refuses them at once.
//
// # The guarantee
//
// In any interval of length W at most Capacity + LeakRate*W units leave, for each leaky limit of a
// bucket. For a [Window] of n it is at most n in any interval of its length, and for an [Hourly],
// [Daily] or [Monthly] limit at most n in each period. That holds through concurrency, cancels,
// settles, holds, slow-downs, changes of limits, and clocks that step back. A call may leave late:
//
//   - From a queue by the queue's tolerance, which is 5 ms under [Per] and its kin and under
//     windows, and up to 50 ms under other limits, however far away a shared store is.
//   - From a shared bucket alone, which cannot wait, by the way back of the store's reply and
//     100 ms.
//   - From both by half of the difference between a route's way there and its way back.
//
// Of a leaky limit that adds at most LeakRate times the delay. A calendar has a second to spare for
// it, and a window 10 ms. Where calls leave later than that, a burst that is late and the next one
// that is not come together: in an interval that is shorter than the window by the delay, less 10
// ms, still at most n leave, but in a whole window it may be 2n. So a window in a shared store
// needs a queue around its bucket: of Window(10, time.Second) a bucket alone let 18 go in 0.93 s
// when the replies of the first ten were 90 ms late.
//
// The guarantee does not cover units beyond what a call acquired ([Permit.Settle]), and a shared
// store whose clock jumps forward, which looks like idleness.
//
// "10 per second" is less simple than it looks. A bucket that holds 10 and leaks 10 per second lets
// nearly 20 through within one second: 10 that it had saved, and 10 that leak meanwhile. An API
// that counts the calls of any second refuses almost half of those. So [Per] and its kin have
// capacity 1 and space calls evenly: those of PerSecond(10) leave 101 ms apart. Whichever second
// the API looks at, it sees at most 10, with 10 ms to spare for a network that moves calls closer
// together. That costs 1 % of the quota. [Limit.Burst] lets some go at once, at a lower rate, so
// that the promise still holds. A literal [Limit] spares nothing for the network: there the API's
// own capacity has to be above the bucket's by what leaks in 10 ms.
//
// # Which limit for which API
//
//	GitHub: 5 000 an hour, 900 points a minute    Window(5_000, time.Hour), Per(900, time.Minute).Of(1, "points")
//	HubSpot: 100 in 10 s, 250 000 a day           Window(100, 10*time.Second), Daily(250_000, zone)
//	Slack: 50 a minute, for each method           Window(50, time.Minute), a bucket for each method
//	YouTube: 10 000 units a day, Pacific time     Daily(10_000, losAngeles)
//	Stripe: 100 a second                          PerSecond(100)
//	Shopify: a bucket of 40 that leaks 2 a second Limit{Capacity: 40, LeakRate: 2}
//	OpenAI: 500 requests, 30 000 tokens a minute  Window(500, time.Minute), Window(30_000, time.Minute).Of(1, "tokens")
//	a budget in money                             Monthly(1_000, zone), with Fillup
//	an API that tells nothing about its limit     Per
//
// [FixedWindow] is for an API whose window begins with the first call, and only if that call surely
// arrives within 10 ms: else, and where in doubt, Window.
//
// What they cost: [Per], alone in a bucket, is one word and one compare-and-swap, in some 100
// bytes; calls go evenly, also after a pause. For all else a decision takes a lock, and a bucket
// about a kilobyte: two leaky limits 1 030 bytes, a [Window] with one call 1 180, a [Daily] 1 300.
// A Window uses all of its quota but for 10 ms of each window, and may let it go in one burst. Its
// log, in 64 parts, grows up to 4 KiB. A calendar gives up the second after each reset. In a shared
// store all limits of a bucket are one trip.
//
// # Limits, units, costs
//
// A [Bucket] has one to eight limits, each on one of up to four units: calls, tokens, money. A
// [Cost] has a number for each unit. The number of the first unit, the calls, is above 0 or [Free]:
// a cost that forgets it is [ErrInvalid]. A call is charged to all limits or to none, and one
// that waits for one limit fills the others when it goes. [InFlight] limits calls in progress. In a
// queue of its own it is the outer limiter, and the one that counts calls per time is the inner
// one: see package queue.
//
// # Gate and meter
//
// [Bucket.Acquire] is the gate: it fills only if there is room. [Bucket.Fillup] is the meter: it
// always fills, up to the brim, and tells the level, for spending or error rates.
// [Bucket.AbleToAccept] and [Bucket.State] look and change nothing. [Bucket.Explain] tells when a
// call could go, and why not before; a queue has it, too.
//
// # What the API answers
//
// [Permit.Settle] gives units back, or adds some, when a call's real cost is known.
// [Permit.Refused] tells the bucket of a 429: nothing goes until the API's pause is over, then
// calls drip at a clock that is slower for a while. Refusals that slowing down does not make fewer
// soon slow down no more. [Permit.Hold] pauses without slowing down. [Permit.Answered] says all
// that an API can say: what remains of a quota, why a call was refused, or that no answer came.
// Package transport does this for HTTP.
//
// # Errors
//
// Every error is a value to compare with [errors.Is] or to find with [errors.As], also inside the
// *url.Error of an http.Client:
//
//   - [*ThrottledError], which is [ErrThrottled]: the call has no room now, or not before its
//     deadline or its queue's MaxWait, and is told so at once. It is also
//     [context.DeadlineExceeded], queue.ErrFull or [ErrFull] where that is why. Come back after
//     its RetryAfter; 0 means that nobody knows the time.
//   - [ErrTooLarge]: the cost is above a limit's capacity. Never retry it. Its text says which
//     Burst, or which n, the cost needs.
//   - [ErrInvalid]: a mistake in the program, such as a limit that is none.
//   - The ctx's own error: the context ended while the call waited. The call was charged
//     nothing, and holds nobody up.
//   - queue.ErrClosed: the program closed the queue, because it is shutting down.
//   - [*StoreError]: a shared store failed. The call was not admitted. Room may be lost, and
//     none is gained.
//
// # Jobs
//
// A job that has no room gets a [*ThrottledError] with the time to come back. Do not reschedule
// many jobs of a bare bucket for their RetryAfter: they all come back together, one is admitted,
// and the rest are rescheduled again. 1,000 jobs at 10 per second make 500,500 attempts. A
// Scheduler of package queue/jobs gives each job its own time: 1,990 attempts, or 1,000 if the
// reservations are booked when the jobs are enqueued. See [Wrap] for jobs as functions.
//
// # Before you enforce
//
// Package outbound/shadow admits all calls and reports what a limit would have done with each: how
// long the call would have waited, or why it would have been refused.
//
// # Metrics and logs
//
// Package watch has a board: a page for people, metrics for Prometheus, and lines for a log. To
// count by yourself, [Observe] reports what happens to calls, and [Bucket.Observe] what happens to
// a bucket: holds of whatever cause, and their end, slow-downs, new limits, calls that were
// forgotten and places that came too late. A store across a network counts its trips and tells
// which servers are away, by its method Stats; fallback.Store.State tells of an outage, and
// queue.Queue.Stats who waits.
//
// # Coming from others
//
// What golang.org/x/time/rate calls Allow is [Bucket.Acquire], Reserve is [Bucket.Book], and Wait
// is a queue. redis_rate's AllowAtMost, which takes as many of n as there is room for, has no
// equal: a [Booking] of n costs of one with no Horizon takes as many as may go now. Nor has its
// Reset, because an API does not forget what it has counted: [Bucket.Resume] ends a hold and a
// slow-down, and refills nothing. COMING_FROM.md in this folder has tables for these two,
// failsafe-go, Bottleneck and Sidekiq.
//
// # Where state lives
//
// [NewBucket] makes a bucket of this process; a decision is one compare-and-swap. [NewSharedBucket]
// keeps the state in a [store.Store], where all buckets of a key are one. What every store does is
// [store.Op.Apply], a pure function. Package store tells how to write one, and package
// outboundtest examines stores. Package fallback has one around another that may be away.
package outbound
