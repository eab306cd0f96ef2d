// Package asynqjobs paces the tasks of asynq with the limits of the API that they call. A task over
// the limit is rescheduled until its reservation, and its worker takes another one.
//
//	scheduler := jobs.New(bucket, jobs.Config{}) // one bucket of all processes, in Redis
//	pacer := asynqjobs.New(rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
//		return scheduler, outbound.Cost{1}
//	})
//	mux.Use(pacer.Middleware)
//	server := asynq.NewServerFromRedisClient(rdb, pacer.Config(asynq.Config{Concurrency: 50}))
//
// A [Pacer] needs all of its parts. Middleware reschedules tasks, and Config keeps asynq from
// counting that as a failure. Without Config asynq waits for its own backoff after each reschedule,
// and archives the task after 25 of them.
//
// # What happens to a task
//
//	its reservation is far     rescheduled until shortly before it, with its ticket
//	its reservation is near    waits in the worker, at most PollInterval + 2*HeadStart
//	it is on its last try      waits in the worker: asynq archives it after a last try
//	its cost exceeds a limit   archived immediately, as by asynq.SkipRetry
//	it fails                   as without a Pacer; the next run books again
//	the API refuses its call   as failed; if its permit learns of it, the next run waits for the API
//	it returns the error of    rescheduled for the RetryAfter of the outbound.ThrottledError
//	a limiter inside it
//	its own time is over       as failed: see jobs.AsLater
//	the store is unavailable   rescheduled for some seconds
//	its worker is killed       asynq hands it out again a minute or two later, with its ticket;
//	                           on its last try it is archived
//
// A reschedule leaves asynq's counters and the task's Retried as they are, and calls no
// ErrorHandler. LastErr and LastFailedAt of the TaskInfo show it.
//
// A last try waits only as long as the task's Timeout and Deadline allow. If its reservation is
// later, asynq archives the task and calls the ErrorHandler. The default Timeout is 30 minutes. A
// task with MaxRetry(0) is always on its last try: allow it one retry, or give it its reservation
// with [Pacer.Enqueue].
//
// # Rates and transports
//
// A Pacer charges a task when it begins. If the task's http.Client has a transport.Transport around
// the same bucket, that charge pays for the first request. A task that makes several calls can use
// the Transport, and no limiter in the Pacer: the Transport's ThrottledError reschedules the task,
// and it runs again. If the Transport has a Scheduler, the call waits in the worker instead,
// because an unpaced task has no ticket.
//
// A task brings one ticket, so it can have one reservation.
//
// # Shutdown
//
// Server.Shutdown waits at most ShutdownTimeout (8 s) for tasks in progress, and puts the rest at
// the head of their queue. No waiting task is lost or counts as failed. With the defaults a task
// waits 7 s at most, so all of them run before the end. To end sooner, close the Scheduler's Queue
// before the server is shut down: tasks that wait are rescheduled immediately, except those on
// their last try, which wait until the ShutdownTimeout. A BaseContext that ends with the program
// differs: asynq then counts each task in progress as failed.
//
// # Where asynq is inexact
//
// Asynq keeps times in whole seconds, cut. A Pacer rounds up, so that each task runs when it is due
// or later. Each process looks for due tasks every DelayedTaskCheckInterval, 5 s unless it is set:
// let jobs.Config's PollInterval be that interval.
//
// Priorities of queues apply to due tasks. Reservations have no priority.
//
// A ticket goes by the task's ID. A TaskID that is used again within an hour of its last
// reservation finds that ticket, and its task runs before later ones.
//
// A task's Deadline and the lock of a Unique run on while it is back in asynq. The lock of a task
// that Enqueue has booked counts from its reservation. A Timeout begins again with each run, and
// includes the task's wait in the worker.
package asynqjobs
