// Package queue lets calls wait for a bucket, first in, first out.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})
//	permit, err := q.Acquire(ctx, outbound.Cost{1})
//
// A call that waits costs a goroutine, which the caller brings, and about 250 bytes. It uses no CPU
// until its turn. A call that comes while nobody waits, for a bucket in this process, takes up to
// twice as long as the bucket's own decision, and allocates nothing more.
//
// # How a call gets its place
//
// Acquire first asks the bucket itself, if nobody waits and the bucket is in this process. If the
// bucket refuses, the call stands in line. Each call in line needs a place, which is a time of the
// bucket's clock at which it may go. The queue books a place for its first call at once. For the
// calls behind it the queue books when its last place is due within a few milliseconds and a trip,
// and then as many as are due soon. Its only timer is set for the next thing to do. When that
// fires, all calls go whose places are due, in order of arrival. A queue has no goroutine of its
// own: the timer starts one for each trip.
//
//	config.go     Config and what is wrong with one
//	errors.go     the errors to compare with
//	queue.go      Acquire, Shutdown and all else that callers use
//	explain.go    Explain: when a call that comes now could go, and why not before
//	pump.go       does what is due: trips to the bucket, the timer, the lock
//	plan.go       decides what to book and when, and what becomes of a place
//	refusals.go   decides which calls are refused, by sums of the costs ahead
//	waiters.go    the line: the calls that wait, and the places booked for them
//	trips.go      how long trips to the bucket take
//
// # Order
//
// Calls get places first in, first out, whatever they cost. A small call never overtakes a large
// one, and no call overtakes one that waits for a limit which does not count it. With one report an
// hour and ten rows a second in one bucket, a row waits behind the reports, or is refused with the
// time until they have gone, while the State says that all of the limit on rows remains. Calls that
// are not to wait for each other need two buckets.
//
// Two neighbours that are due at one instant may be seen swapped after Acquire has returned,
// because the scheduler runs them in any order. A bucket serves several queues, in one process or
// in many, in the order in which they book. The first call that waits for the end of an
// [outbound.FixedWindow], in a bucket that is in this process, books when the window is over.
// Others may book before it then. If they take all, it gets a place that nobody overtakes.
//
// # Many workers
//
// Queues of many processes on one shared bucket are a fleet. Those with a backlog, which is more
// calls than have a place, have equal shares: a worker that asks less often, because it is further
// from the store, catches up with the one that has booked most, by places up to 100 ms after its
// first or, if the first is further away, at most twice as far as that. A worker whose backlog
// begins is level with the others from then on. It is not owed anything for the time before.
//
// Simulated fleets had 1 to 1 000 workers, 50 and 1 000 calls per second and capacities of 1 and
// 100; half of the workers were ten times as far away as the others, 2 and 20 ms there and back.
// Jain's index of fairness (1: all equal) was 0.999 and more with 20 calls in each queue, and 0.99
// with one or two as long as those can use the rate at all. Two workers that do not catch up have
// 0.55. All of the leak rate was used.
//
// A worker alone at 1 000 calls per second made one trip to the store for ten calls. Under
// contention a call takes at most one trip with two or more calls in each queue, and two with one:
// one trip books the place, and one hears whether it still stands. A worker whose next place is far
// away asks every ten seconds whether another worker has changed the limits or ended a hold.
//
// A call uses its place only if the queue has heard the bucket's clock within 25 ms before, or
// within the time of a trip, up to 1 s, where that is longer. So a hold that another worker caused
// stops this one. At 100 calls per second, a millisecond away, none or one went into a hold.
//
// # Far away
//
// Where a reply takes longer to come back than half the tolerance, the queue books no place that is
// due before the reply arrives. What leaks until then is lost if nobody else has booked it; while
// calls wait, that happens only to the first. A MaxWait that is shorter than two trips and a reply's
// way back counts as that. Package redisstore says what a distance costs.
//
// A store that tells too short a way back costs a call that comes alone up to two trips more. If
// the store does not know of [leak.Op.After], calls leave late by a reply's way back. If more than
// three trips in a row bring no place in time, the queue pauses before the next, for 20 ms at first
// and 640 ms at most.
//
// When the store fails, all calls without a place get its error at once. Those with a place keep it
// until it is due, and fail then if the queue cannot hear the clock. A place that the failed trip
// was to book anew, because units came back, is nobody's any more: the store may have given its
// room to others, and lost only the reply. Its call gets the error. A call that comes later asks
// again.
//
// # What is lost
//
// A call that cancels costs nobody anything as long as another waits: the next call gets its place.
// A place that no call can use goes back, unless others have booked behind it: then it is lost. A
// process that crashes loses the places that it has booked: one or two, and at rates beyond 100 per
// second those of about 15 ms and a trip, or of 100 ms while it catches up. At 1 000 per second
// that was up to 17 for a worker alone and up to 32 for one of two.
//
// # Refused early
//
// A call that cannot make its ctx's deadline, or MaxWait, is refused at once, with the time until
// it could go. With several limits, or with windows, a call that cannot make it may be refused as
// late as its deadline, because only calls ahead count that surely go. No call is refused that
// could make it, and none is charged that is refused. That does not cover units that come back
// later: calls ahead that cancel or cost less than they were to, limits that are raised, and a
// Resume. A call that has neither a MaxWait nor a ctx with a deadline waits for a day at most.
//
// With one leaky limit the time is exact, in this process and in a store, as long as no other
// process uses the bucket. With several leaky limits it is exact if all calls cost the same. With
// one window in this process it is off by a 64th of the window, if all calls cost the same. With
// other limits it is a lower bound: calls ahead count that have places, and those that the slowest
// order of all limits lets go in time. While units may have come back of which
// no trip has told yet, the queue refuses nobody for a deadline. It looks at the calls that have
// come meanwhile after the trip.
//
// A newcomer takes some 100 ns of CPU, however many calls wait. After a hold or a change of limits
// the queue looks at all calls again, 2 048 at a time, and then lets others have its lock.
//
// The queue does not know when calls in progress end. With an [outbound.InFlight] only calls ahead
// count that have places.
//
// A limit that counts by the calendar books no further ahead than its next period. Calls that can
// go only in the one after it stay in line, and book when this period is over.
//
// # In jobs
//
// A job of [outbound.Do] whose queue has an [outbound.InFlight] holds its slot until it ends.
// Further requests that it sends through package transport need none. They wait in a line of their
// own, so that none waits behind a call that waits for its job. To the limits per time both lines
// are like two queues around the bucket. MaxLen counts in each. Stats, Len, Close and Shutdown are
// about both.
//
// # Late
//
// A call uses its place on time or not at all. A process that was paused, or is short of CPU, gives
// a place back that it comes to later than the tolerance, and the call books anew, still first: see
// Config.Tolerance and Stats.Late. A place of a shared bucket is due by the store's time, and not
// from its reply's arrival. A reply that comes late shifts nothing: places that have passed
// meanwhile are lost for this worker. The very first call of a worker that is far from the store
// books twice, because only its first reply tells the distance.
//
// # In a row
//
// A limit that counts calls in progress goes outside, and one that counts calls per time inside,
// next to the call: then a call leaves at the moment that its inner queue gives it. Both may wait.
// An [outbound.InFlight] queue around a queue for the rate is as good as one bucket with both
// limits, which is simpler where both count the same calls. The other way round a call gets its
// moment first and then waits for a slot, and calls that waited leave together: the API refuses
// those.
//
// A call that waits inside keeps its slot outside. Where many inner queues share one outer, as 200
// hosts share 20 slots, let no more calls of one host come at a time than it serves soon, or they
// take the slots of the others.
//
// Two limits per time belong into one bucket: then a call takes from both or from none. Where they
// cannot be, only the inner queue keeps its promise to the API.
package queue
