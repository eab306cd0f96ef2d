// Package queue lets calls wait for a bucket, first in, first out.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})
//	permit, err := q.Acquire(ctx, outbound.Cost{1})
//
// A call that comes while nobody waits asks the bucket itself. If the bucket is in this
// process, that allocates nothing more than the bucket does and takes one and a half times
// as long. A call that waits costs a goroutine, which the caller brings, and about 250 bytes, and
// uses no CPU until its turn. The queue has one timer, and each time that
// fires all calls go that are due.
//
// # Order
//
// Places are given first in, first out, whatever the calls cost: a small call
// never overtakes a large one, and nobody overtakes a call that waits for a limit
// which does not count it. With one report an hour and ten rows a second in one
// bucket a row waits behind the reports that wait, or is refused with the time until
// they have gone, while the State says that all of the limit on rows remains. Calls
// that are not to wait for each other need two buckets.
//
// Two neighbours that are due at one instant may be seen swapped after Acquire has
// returned, because the scheduler runs them in any order. Several queues on one
// bucket, in one process or in many, are served in the order in which they book,
// which each does for its own head a few milliseconds, and a trip to the store, ahead.
//
// # Many workers
//
// Queues of many processes on one shared bucket are a fleet. Those with a
// backlog, which is more calls than have a place, have equal shares: who is
// further from the store, and so asks less often, catches up with whoever has
// booked most, up to 100 ms further ahead at a time. Simulated with 1 to 1 000
// workers, 50 and 1 000 calls per second, capacities of 1 and 100, half of the
// workers ten times as far away as the others, 2 and 20 ms there and back: Jain's
// index of fairness (1: all equal) was 0.999 and more with 20 calls in each
// queue, and 0.99 with one or two as long as those can use the rate at all; without
// catching up it is 0.55 for two workers. All of the leak rate was used. Where its
// first place is further away than that, a worker catches up by as much again. Who
// begins to have a backlog is level with the others from then on, and is not owed
// anything for the time before.
//
// A worker that is alone at 1 000 per second made one trip to the store for ten
// calls. Under contention it is at most one per call with two or more calls in
// each queue, and two with one: one trip books the place, and one hears whether
// it still stands.
//
// A worker whose next place is far away makes a trip every ten seconds, to hear
// whether another has changed the limits or ended a hold.
//
// A place is only used if the bucket's clock was heard within 25 ms before, or
// within the time of a trip, up to 1 s, where that is longer: so a hold that another
// worker caused stops this one. At 100 calls per second, a millisecond away, none or
// one went into a hold.
//
// Where a reply takes longer to come back than half the tolerance, the queue books no
// place that is due before the reply is there. What leaks until then is lost if nobody
// else has booked it; while calls wait, that happens only to the first. A MaxWait that
// is shorter than a trip and a reply's way back counts as that. Package redisstore says
// what a distance costs.
//
// A store that tells too short a way back costs a call that comes alone up to two trips
// more. From one that does not know of [outbound.Op.After] calls leave late, by a reply's
// way back. If more than three trips in a row bring no place that can be used, the queue
// pauses before the next, for 20 ms at first and 640 ms at most.
//
// When the store fails, all calls without a place hear of it at once, with its
// error; those with one keep it until it is due, and then fail if the clock
// cannot be heard. A call that comes later asks again.
//
// # What is lost
//
// A call that cancels costs nobody anything as long as another waits: its place
// is the next one's. A place that nobody can use goes back, unless others have
// booked behind it: then it is lost. A process that crashes takes the places with
// it that it has booked: one or two, and at rates beyond 100 per second those of
// about 15 ms and a trip, or of 100 ms while it catches up. At 1 000 per second
// that was up to 17 for a worker alone and up to 32 for one of two.
//
// # Refused early
//
// A call that cannot make its ctx's deadline, or MaxWait, is refused at once,
// with the time until it could go: nobody sleeps in vain. The forecast is a
// lower bound; a cancel ahead only makes a call earlier, and after a hold or a
// change of limits all who wait are checked again.
//
// # Late
//
// A place is used on time or not at all. When the process was paused, or is
// short of CPU, and comes later than the tolerance, the place is given back and
// the call books anew, still first: see Config.Tolerance and Stats.Late.
// With a shared bucket a place is due by the store's time, and late from then on,
// not from its reply's arrival. A reply that comes late shifts nothing: places that
// have passed meanwhile are lost for this worker, and its calls book anew. The very
// first call of a worker that is far from the store books twice, because only its first
// reply tells the distance.
//
// # In a row
//
// A limit that counts calls in progress goes outside, and the one that counts calls per
// time inside, next to the call: so a call leaves at the moment that its inner queue has
// given it. Both may wait. An [outbound.AtOnce] queue around a queue for the rate is as
// good as one bucket with both limits, which is simpler where both are of the same
// calls: of 1 000 calls none fails, the rate is used as well, and no window sees more.
// The other way round a call has its moment first and then waits for a place, and
// calls that waited leave together: the API refuses those.
//
// A call that waits inside keeps its place outside. Where many inner queues share one
// outer, as 200 hosts share 20 places, no more calls of one host are to come at a time
// than it serves soon, or they take the places of the others.
//
// Two limits per time belong into one bucket: then a call takes from both or from none.
// Where they cannot be, only the inner queue keeps its promise to the API.
package queue
