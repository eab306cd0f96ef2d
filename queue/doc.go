// Package queue lets calls wait for a bucket, first in, first out.
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	q := queue.New(bucket, queue.Config{MaxWait: time.Minute})
//	permit, err := q.Acquire(ctx, outbound.Cost{1})
//
// A call that is admitted at once costs no more than the bucket. One that
// waits costs a goroutine, which the caller brings, and about 250 bytes, and
// uses no CPU until its turn. The queue has one timer, and each time that
// fires all calls go that are due.
//
// # Order
//
// Places are given first in, first out, whatever the calls cost: a small call
// never overtakes a large one. Two neighbours that are due at one instant may
// be seen swapped after Acquire has returned, because the scheduler runs them
// in any order. Several queues on one bucket, in one process or in many, are
// served in the order in which they book, which each does for its own head a
// few milliseconds ahead.
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
//
// # In a row
//
// Only the outermost of several limiters in a row may wait, and the inner ones
// are bare buckets: behind an outer wait the places of an inner queue go stale.
package queue
