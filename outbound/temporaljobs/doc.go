// Package temporaljobs paces the activities of Temporal workers: an activity over the limit waits
// in Temporal instead of a worker, and runs at its reservation. It is a module of its own, for
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
// needs the ticket in each attempt. One of three keeps it:
//
//   - The workflow, which books the reservation before it starts the activity: [Await]. The
//     activity then has one attempt. Use it in workflows that you may change.
//   - [Tickets], a key for each activity in Redis or in a table. The activity has two attempts: the
//     first one books.
//   - Without both, the activity waits in its worker, as in a queue, for as long as its
//     StartToCloseTimeout allows. A reschedule would book behind all other activities each time.
//
// One interceptor serves all activities and workflows of a worker: both need it.
//
// A ticket affects the order of activities only: the bucket alone admits calls.
//
// # Attempts and timeouts
//
// Temporal counts each attempt that is rescheduled. MaximumAttempts must allow for them, or better
// be 0 with a ScheduleToCloseTimeout instead. On the last attempt the activity waits in the worker,
// and fails only if its reservation is after its deadline.
//
// Where a ticket is kept, the [jobs.Config] bounds how long an activity waits in the worker: by
// some seconds. The wait counts against the StartToCloseTimeout. If there is a HeartbeatTimeout,
// the wait sends heartbeats with the details of an earlier attempt. So the details survive, and a
// cancellation ends the wait.
//
// If the reservation is after the ScheduleToCloseTimeout, Temporal fails the activity immediately,
// with the error of TypeLater.
//
// An attempt that is rescheduled is benign: the SDK logs and counts no failure. A cost above a
// limit's capacity is an error of TypeCost, which Temporal does not retry. The same holds for such
// a cost inside the activity. If an activity returns a [*outbound.ThrottledError], as a paced
// http.Client does, it is rescheduled, and starts again. If its own time is over, it has failed:
// see [jobs.AsLater]. Its other errors stay as they are. If both the interceptor and a transport
// pace an activity by one bucket, the activity's charge pays for its first request. A transport
// with a Scheduler needs Tickets. An activity brings one ticket, so it can have one reservation.
//
// A failed activity books again for its next attempt. After Await each attempt has the same ticket,
// so the next one is admitted as soon as the limits allow. After [outbound.Permit.Refused] the next
// attempt comes after the pause or after the RetryPolicy's delay, whichever is later. The error
// asks for that by a NextRetryDelay, and keeps its type, message and cause. An ApplicationError
// stays as the activity has made it, with its own NextRetryDelay; if the attempt comes too early,
// it is rescheduled. The SDK ignores an ApplicationError that is wrapped in another error.
//
// # Shutdown
//
// When the worker stops, a waiting activity is rescheduled immediately, and another worker has it
// about a second later. Give the worker a WorkerStopTimeout, so that it can report that. Otherwise
// Temporal waits for the StartToCloseTimeout. The last attempt of an activity goes on waiting until
// then.
package temporaljobs
