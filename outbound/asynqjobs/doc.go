// Package asynqjobs paces the tasks of asynq with the limits of the API that they call. A task that
// has no room now goes back to asynq until its reservation, and a worker that is free takes another
// one.
//
//	scheduler := jobs.New(bucket, jobs.Config{}) // one bucket of all processes, in Redis
//	pacer := asynqjobs.New(rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
//		return scheduler, outbound.Cost{1}
//	})
//	mux.Use(pacer.Middleware)
//	server := asynq.NewServerFromRedisClient(rdb, pacer.Config(asynq.Config{Concurrency: 50}))
//
// A [Pacer] needs all of its parts: Middleware reschedules tasks, and Config tells asynq that a
// task that was rescheduled has not failed. Without Config asynq counts each reschedule as a
// failure, waits for its own backoff, and archives the task after 25 of them.
//
// # What happens to a task
//
//	it has no room             it goes back until shortly before its reservation, and keeps the ticket for it
//	its reservation is near    it waits in the worker, for jobs.Config's Poll and two head starts at most
//	it is on its last try      it waits in the worker: asynq archives what comes back from a last try
//	it costs more than fits    it is archived at once, as by asynq.SkipRetry
//	it fails                   as without a Pacer, and its next run gets a new reservation; if the API has refused
//	                           its call, and the task has told its permit so, it comes back no earlier than
//	                           the API has asked for
//	a limiter inside of it     has no room: the task goes back for the RetryAfter of the
//	                           outbound.ThrottledError that it returns
//	the store is away          it goes back for some seconds
//	its worker is killed       asynq hands it out again a minute or two later, and it reads its ticket; one on
//	                           its last try is archived
//
// A task that goes back is neither a failure nor a retry: asynq's counters and the task's Retried
// stay as they are, and no ErrorHandler hears of it. Only LastErr and LastFailedAt of its TaskInfo
// show it.
//
// A last try waits only as long as the task's Timeout and Deadline allow. If its turn comes later,
// asynq archives the task, and the ErrorHandler hears of it. The default Timeout is 30 minutes. A
// task with MaxRetry(0) is always on its last try: allow it one retry, or give it its reservation
// with [Pacer.Enqueue].
//
// # Rates and transports
//
// A Pacer charges a task when it begins. If the task's http.Client has a transport.Transport around
// the same bucket, that charge pays for the first request. A task that makes several calls can also
// take the Transport, and the Pacer without a limiter: the ThrottledError of the Transport
// reschedules the task, and it runs anew. If that has a Scheduler, it is not rescheduled, but waits
// for its reservation in the worker, because nothing keeps tickets for tasks that are not paced.
//
// A task brings one ticket, so it can have one reservation.
//
// # Shutdown
//
// Server.Shutdown waits for tasks under way, for ShutdownTimeout at most (8 s), and puts the others
// to the head of their queue. Nothing that waits for its turn is lost or counts as failed. With the
// defaults a task waits 7 s at most: all of them then go first. To end sooner, close the
// Scheduler's Queue before the server is shut down: tasks that wait are rescheduled immediately,
// except those on their last try, which wait until the ShutdownTimeout. A BaseContext that ends
// when the program is to end is another matter: asynq then counts each task under way as failed,
// paced or not.
//
// # Where asynq is inexact
//
// Asynq keeps times in whole seconds, cut. A Pacer rounds up, so that no task comes before it is
// due. Each process looks for due tasks every DelayedTaskCheckInterval, 5 s unless it is set: let
// jobs.Config's Poll be that interval.
//
// Priorities of queues are among the tasks that are due. Reservations know no priority.
//
// A ticket goes by the task's ID. A TaskID that is used again within an hour of its last
// reservation brings that ticket, and its task goes before others.
//
// A task's Deadline and the lock of a Unique run on while it is back in asynq. The lock of a task
// that Enqueue has booked counts from its reservation. A Timeout begins anew with each run, and
// counts the time in the worker before the task's turn.
package asynqjobs
