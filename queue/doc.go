// Package queue lets calls wait for a bucket, first in, first out.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})
//	permit, err := q.Acquire(ctx, outbound.Cost{1})
//
// If the bucket has no capacity, Acquire waits in the call's goroutine until its reservation. A
// waiting call takes about 250 bytes, its goroutine, and no CPU.
//
// # Order
//
// Calls leave in the order of their arrival, whatever they cost. No call overtakes another, even if
// they need different limits. Calls that should not wait for each other, such as one report an hour
// and ten rows a second, need two buckets.
//
// Two calls that leave at the same instant may return from Acquire in the other order. A bucket
// serves several queues, in one process or in many, in the order of their reservations. Nothing can
// be reserved beyond the end of an [outbound.FixedWindow] or of a calendar period. A queue whose
// first call needs the next one waits until it begins; other queues and calls may then be first.
//
// # Refused early
//
// A call that cannot leave within MaxWait, or in time for an answer before its ctx's deadline, is
// refused immediately, with the time until it could leave. The queue learns how long answers take:
// see [Config].CallTime. Without MaxWait and deadline a call waits for a day at most. A refused
// call is uncharged. The queue refuses no call that could leave in time. This does not cover later
// returns of units, by cancelled calls, calls that cost less than acquired, higher limits and a
// Resume, and answers that become faster or slower.
//
// The time is exact in these cases:
//
//   - one leaky limit, in memory or in a store that no other process uses
//   - several leaky limits, if all calls cost the same
//   - these with windows and calendar quotas that have capacity for all waiting calls
//   - one window in memory, to a 64th of the window, if all calls cost the same
//
// Otherwise it is a lower bound, and a call that cannot leave in time may be refused as late as its
// deadline. The bound counts the calls ahead that have reservations, and those that surely leave in
// time, in the slowest order that their limits allow. The rest counts until the first of them may
// give up, and those without a deadline always count. The end of calls in flight is unknown, and
// adds nothing. While returned units are on their way to a store, the queue refuses no call before
// the reply.
//
// [Queue.Explain] returns the same time, and whether it is exact or a lower bound.
// [Queue.ExplainLast] returns it for many calls, and [Queue.Progress] while they are made.
//
// A new call takes some 100 ns of CPU, however many calls wait. After a hold or a change of limits
// the queue looks at all calls again, 2,048 at a time, and frees its lock in between.
//
// # Late and cancelled calls
//
// If the process was paused, or lacks CPU, a reservation later than [Config].Tolerance returns to
// the bucket, and its call reserves again as the first in line. [Stats].Late counts these.
//
// The reservation of a cancelled call goes to the next call, or else back to the bucket, and frees
// its units if no later reservation exists. A process that crashes loses its reservations: one or
// two, and above 100 calls per second those of about 15 ms and a request. While it catches up
// with other processes, those of the 100 ms after its first, or of 4 times as long as that is away.
//
// # Shares
//
// Queues around one bucket share it equally while calls wait in all of them, in one process or in
// many. With a queue per tenant, in an [outbound.Keyed], a tenant with 10,000 calls has one of them
// at a time among the calls of other tenants. If those use half of 100 calls per second, it raises
// the 95th percentile of their waits from 20 ms to 63 ms. [Config].Weight changes the shares:
//
//	users := queue.New(bucket, queue.Config{Weight: 9})
//	batch := queue.New(bucket, queue.Config{}) // a tenth while both wait, all while no user waits
//	nightly := queue.New(bucket, queue.Config{Behind: users}) // only while no user waits
//	reports := queue.New(bucket, queue.Config{Headroom: 0.2}) // only while a fifth stays free
//
// A [Config].Headroom acts in all processes: users find capacity without a wait until more of them
// come than it keeps free. Weight and Behind only order the calls that wait.
//
// Queues of weights 9 and 1 take rounds of 10 calls, one from the second. A ratio above 9 needs a
// Weight of 1 for the smallest share. A queue counts while two of its calls have no reservation.
// Early refusals count only the queue's own calls.
//
// A window or a calendar frees many units at one time. Queues whose calls wait then share them by
// weight, within 10 % or 2 calls. A queue with fewer calls than its share gets all of them, and the
// queues with more calls share the rest. An unused share is free for all queues 100 ms later at the
// latest, after 1/200 of a Window or 1/10 of a FixedWindow. This covers windows longer than 100
// requests to the store, from the second on.
//
// # Many processes
//
// A queue alone at 1,000 calls per second makes one request to the store for ten calls. Under
// contention it takes at most one request a call if two calls wait in each queue, else two. A
// reservation is used only within 25 ms of the store's last reply, or within the time of a request
// up to 1 s if that is longer, so a hold that another process caused stops this one. A queue whose
// next reservation is far away asks every ten seconds for other processes' changes. A call may wait
// longer than MaxWait by the network's jitter.
//
// If a request for reservations fails, all calls without one get the store's error. Calls with one
// fail only if the store is unreachable when they should leave, or if the request was to move it.
//
// # Jobs and two queues
//
// A job of [outbound.Do] whose queue has an [outbound.InFlight] is in flight until it ends. Its
// further requests through package transport need no capacity in flight. They wait in a line of
// their own, never behind a call that waits for their job. MaxLen counts in each line. Stats, Len,
// Close and Shutdown cover both.
//
// Put a limit of calls in flight outside and a limit per time inside, next to the call, which then
// leaves when the inner queue admits it. If both count the same calls, one bucket is simpler.
package queue

// How it works. The queue books a reservation, as package outbound calls it, for its first call
// immediately. For the calls behind it the queue books when its last reservation is due within a
// few milliseconds and a request, and then as many as are due soon. Its only timer is set for the
// next thing to do.
//
// If replies take longer than half the tolerance, the queue reserves no time before the reply
// arrives, and MaxWait is at least two requests and the latency of a reply. Units that leak until
// then are lost if no other process takes them; while calls wait, only the first call can lose
// some. If more than three requests in a row bring no usable reservation, the queue pauses for 20
// ms to 640 ms between them.
//
// A process that is further from the store catches up. It reserves up to 100 ms after its first
// reservation, or up to 4 times as long after that as it is away.
//
//	config.go    Config and what is wrong with one
//	errors.go    the errors to compare with
//	queue.go     Acquire, Shutdown and most of what callers use
//	explain.go   when a call would leave, and when the last of many
//	pump.go      does what is due: lets calls go, requests to the bucket, the timer, the lock
//	plan.go      decides what to book and when, and which calls are refused, by sums of the costs ahead
//	waiters.go   the line: the calls that wait, and the reservations booked for them
//
// Simulated fleets had 1 to 1,000 processes, 50 and 1,000 calls per second and capacities of 1 and
// 100. Half of the processes were 2 ms from the store, and half 20 ms. Jain's index of fairness was
// 0.999 with 20 calls in each queue, 0.99 with one or two, and 0.55 without the shares. All of the
// leak rate was used. A crash lost up to 17 reservations of a process alone at 1,000 calls per
// second, and up to 32 of one of two.
