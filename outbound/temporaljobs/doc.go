// Package temporaljobs paces the activities of Temporal workers: an activity that has no room yet
// waits in Temporal, not in a worker, and runs in its turn. It is a module of its own, for
// go.temporal.io/sdk.
//
//	bucket := outbound.Must(outbound.NewSharedBucket(store, "shop", outbound.PerSecond(10)))
//	calls := jobs.New(bucket, jobs.Config{})
//	limiter := func(i activity.Info) (outbound.Limiter, outbound.Cost) {
//		if i.ActivityType.Name != "Charge" {
//			return nil, outbound.Cost{} // not paced
//		}
//		return calls, outbound.Cost{1}
//	}
//	w := worker.New(c, "orders", worker.Options{
//		Interceptors: []interceptor.WorkerInterceptor{temporaljobs.NewInterceptor(limiter, nil)},
//	})
//
// and in the workflow
//
//	ctx, err := temporaljobs.Await(ctx, "Charge", outbound.Cost{1})
//	if err != nil {
//		return err
//	}
//	return workflow.ExecuteActivity(ctx, "Charge", order).Get(ctx, nil)
//
// # Who keeps an activity's reservation
//
// A [jobs.Scheduler] gives each activity a reservation, and a ticket that names it. The activity
// needs the ticket whenever it comes, and one of three keeps it:
//
//   - The workflow, which books the reservation before it starts the activity: [Await]. The activity then
//     has one attempt. That is for workflows that you may change.
//   - [Tickets], a key for each activity in Redis or in a table. The activity has two attempts: with
//     the first it books.
//   - Nobody. Then the activity waits in its worker, as in a queue, for as long as its
//     StartToCloseTimeout allows. Rescheduled, it would get a reservation behind all others each time.
//
// One interceptor is for all activities of a worker, and for all its workflows: both need it.
//
// Whatever becomes of a ticket, only the order of activities depends on it: the bucket alone lets
// calls go.
//
// # Attempts and timeouts
//
// Temporal counts each attempt that is rescheduled. MaximumAttempts has to leave room for them, or
// better be 0, with a ScheduleToCloseTimeout in its place. On the last attempt the activity waits
// in the worker, and fails only where its reservation comes after its deadline.
//
// Where a ticket is kept, the [jobs.Config] bounds how long an activity waits in the worker: by
// some seconds. The wait counts against the StartToCloseTimeout. Where there is a HeartbeatTimeout,
// the wait sends heartbeats with the details that an earlier attempt has left, so that they outlive
// it, and so that a cancellation is heard.
//
// If the reservation comes after the ScheduleToCloseTimeout, Temporal fails the activity at once,
// with the error of TypeLater.
//
// An attempt that is rescheduled is benign: the SDK logs and counts no failure. A cost that can
// never go is an error of TypeCost, which is not retried. What an activity returns itself stays as
// it is, but for a [*outbound.ThrottledError], such as that of a paced http.Client: the activity is
// rescheduled, and starts anew. Its own cost that can never go is one of TypeCost, too. If both the
// interceptor and a transport pace an activity by one bucket, the activity's charge pays for its
// first request. A transport with a Scheduler needs Tickets. An activity brings one ticket, so it
// can have one reservation.
//
// An activity that fails gets a new reservation for its next attempt, unless its workflow has
// called Await, whose ticket each attempt brings: then it goes as soon as there is room. If it has
// called [outbound.Permit.Refused], its next attempt comes when the pause is over, or when its
// RetryPolicy says, whichever is later: its error asks for that by a NextRetryDelay, and keeps its
// type, message and cause. An ApplicationError stays as the activity has made it, with its own
// NextRetryDelay; if the attempt comes too early, it is rescheduled. One that is wrapped in another
// error is none to the SDK, which sends what is around it.
//
// # Shutdown
//
// When the worker stops, who waits is rescheduled at once, and another worker has it within a
// second or so. Give the worker a WorkerStopTimeout, so that it has time to say so; else Temporal
// waits for the StartToCloseTimeout. The last attempt of an activity goes on waiting until then.
package temporaljobs
