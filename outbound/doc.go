// Package outbound limits the rate of calls to third-party APIs.
//
// A [Bucket] has one or more limits. [Bucket.Acquire] admits a call if every limit has capacity for
// it. Otherwise it returns a [*ThrottledError] that says when to retry:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//
//	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
//	if err != nil {
//		return err
//	}
//	defer permit.Done()
//
// Most programs do not call Acquire. Package transport limits an http.Client, [Do], [Wrap] and
// [Each] limit functions and jobs, and package queue makes calls wait instead of failing.
//
// # Choosing a limit
//
//	Stripe: 25 a second at each endpoint PerSecond(25)
//	GitHub: 5,000 an hour, 900 a minute  Window(5_000, time.Hour), PerMinute(900), InFlight(100)
//	HubSpot: 100 in 10 s, 250,000 a day  Window(100, 10*time.Second), Daily(250_000, zone)
//	Shopify: 40, refilled at 2 a second  Limit{Capacity: 39, LeakRate: 2}
//	OpenAI: 500 and 30,000 tokens/min    PerMinute(500), Window(30_000, time.Minute).Of(1, "tokens")
//	a monthly budget, from the 15th on   Monthly(1_000, zone).From(15)
//	5 concurrent requests                InFlight(5)
//
// A write at GitHub costs 5 of the 900. Stripe allows 100 a second in all: [Within] puts a limiter
// for each endpoint, such as PerSecond(20) and InFlight(5), around a total.
//
// [Per], [PerSecond], [PerMinute] and [PerHour] space calls evenly; use them when in doubt.
// [Window] lets up to n calls leave together and uses nearly all of the quota. [Hourly], [Daily],
// [Weekly] and [Monthly] follow the calendar, and admit no call within a second of a period's end.
// [FixedWindow] is only for an API whose window begins with the first call. A [Limit] literal is a
// leaky bucket of that size; make it smaller than the API's by what leaks in 10 ms.
//
// A [Cost] has a number for each unit, such as calls and tokens. A call is charged to every limit
// of its bucket or to none. [Permit.Settle] corrects the charge when the real cost is known.
// Package estimate has the limits of language models, and predicts their tokens. [Bucket.Fillup]
// counts without refusing.
//
// # Guarantees
//
// In any interval of length W, a leaky limit admits at most Capacity + LeakRate*W units. A Window
// admits at most n units in any interval of its length, and a calendar limit at most n in each
// period. Concurrency, cancellation, holds, limit changes and clocks that step back do not break
// this. PerSecond(10) therefore admits at most 10 calls in any second. It spaces them 101 ms
// apart, which absorbs network jitter and gives up 1 % of the quota.
//
// A call may leave late. A queue delays it by up to 5 ms, or 50 ms with literal and calendar
// limits. With a store, a queue takes requests and replies to travel equally long; half of the
// difference is delay, too. A leaky limit then admits up to LeakRate times the delay more. Windows
// absorb 10 ms and calendar limits 1 s. The same holds for a shared bucket without a queue that has
// a window. Without a window its delay is the latency of the reply plus 100 ms.
//
// This does not cover units that Settle adds, and a store whose clock jumps forward.
//
// # Sharing a limit
//
// [NewSharedBucket] keeps the bucket in a [store.Store], so that all processes share it: package
// redisstore for Redis, pgstore for PostgreSQL, rowstore for other databases. Package fallback
// decides what calls do while the store is unavailable. In a shared bucket InFlight counts the
// calls of all processes. [Keyed] makes a limiter per tenant, token or host, and drops idle ones.
// Within puts a limit per tenant around a total.
//
// # Reacting to the API
//
// [Permit.Refused] reports a 429. It puts the bucket on hold: no call is admitted for as long as
// the API asks. Calls then resume at 0.9 of the rate, which recovers by 10 % a minute. Refusals
// without a success in between double the hold, up to an hour. [Permit.Hold] pauses without
// slowing down, and [Bucket.Resume] ends both. Package transport calls these methods for you.
//
// # Errors
//
// Use [errors.Is] and [errors.As], also on the *url.Error of an http.Client:
//
//   - [*ThrottledError] is [ErrThrottled]: over the limit, nothing charged. Retry after RetryAfter;
//     0 means unknown. It also matches [context.DeadlineExceeded], queue.ErrFull, queue.ErrFar or
//     [ErrFull] if that is the cause.
//   - [ErrTooLarge]: the cost exceeds the capacity of a limit. Do not retry.
//   - [ErrInvalid]: a mistake in the program, such as a negative cost.
//   - [*StoreError]: the store failed. The call was not admitted, but may have been charged.
//   - The context's error, or queue.ErrClosed: the call came too late or stopped waiting. It was
//     not charged.
//
// # Observing
//
// [Bucket.Explain] says when a call could leave and what it waits for. Package watch serves a page,
// metrics and log lines. Package ledger counts who used what, and shadow what a limit would refuse.
// [Observe] reports calls, and [Bucket.Observe] holds and other changes of a bucket.
package outbound
