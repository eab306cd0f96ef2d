// Package riverjobs paces the jobs of River, the job queue in PostgreSQL. Jobs over an API's limit
// wait in River's table instead of a worker, and run in order. A waiting job keeps its attempts,
// however often it is rescheduled.
//
//	weather := jobs.New(bucket, jobs.Config{})
//	config.Plugins = []rivertype.Plugin{&riverjobs.Plugin{
//		AtInsert: true,
//		Limiter: func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost) {
//			if kind == "weather" {
//				return weather, outbound.Cost{1}
//			}
//			return nil, outbound.Cost{} // not paced
//		},
//	}}
//
// The package is a module of its own, which imports River and no driver. All processes that share a
// limit need a bucket in one store. Package pgstore keeps buckets in PostgreSQL. The program in the
// folder example runs such a fleet.
//
// # What happens to a job
//
// [Plugin.Work] is a middleware around each job. A [jobs.Scheduler] gives the job a reservation. If
// that is further away than a head start of 1 s, the plugin snoozes the job until then. The job
// keeps the ticket of its reservation in its metadata, under "dripfeed_ticket". When the job comes
// again it waits for the rest in its worker, and calls: it has had two runs. With AtInsert, jobs
// get their reservations when they are inserted ([Plugin.InsertMany]), and most of them have one
// run.
//
// While there is a backlog, as many workers wait as jobs leave in a head start. The rest are free
// for other jobs. If calls are behind their reservations, a worker waits for at most seven
// seconds: a PollInterval and two HeadStarts. With a PollInterval of 1 s, which is River's default
// FetchPollInterval, it waits for at most three. A short PollInterval needs fewer workers, and
// costs runs on a busy machine. There 500 jobs at 20 per second had 2.2 runs each instead of 2.0,
// and 1.3 instead of 1.1 with AtInsert.
//
//	the job has to wait, or the API holds    snoozed, with its ticket
//	the store is unavailable                 snoozed for 1 to 5 s; an insertion goes on without
//	                                         reservations. The store's Observe reports it
//	the job returns a ThrottledError         snoozed until its RetryAfter; then it starts again
//	the job's own time is over               the job has failed: see jobs.AsLater
//	its cost exceeds a limit's capacity      cancelled, which River reports by
//	                                         EventKindJobCancelled, not to its ErrorHandler
//	the job fails                            as without the plugin; it books again
//	the client stops while the job waits     snoozed for 0 s: another client takes it
//	the Scheduler's Queue is closed          snoozed for a head start
//
// A snooze is free of an error and of an attempt, so MaxAttempts may be 1.
//
// If the API answers 429, call outbound.PermitFrom(ctx).Refused(pause) in the job, and return its
// error. River counts that as a failure. The bucket then holds the calls of all processes. With
// [RetryPolicy] in Config.RetryPolicy, River tries the job again when the pause is over. Without
// it, or if the worker has a NextRetry, River may try it earlier, and the plugin snoozes it: one
// run more.
//
// # Costs
//
// River takes the job and writes its result together with those of other jobs. The store is asked
// once for each run, and once more if the job may call. The README has the runs that jobs need.
// River keeps the names of the last 100 clients that took a job in its attempted_by.
//
// A Scheduler charges the job when it begins. If the job's http.Client has a limiter of the same
// bucket, that charge pays for the first request. If a job makes several calls, you can give the
// Scheduler to the client's Transport, and return nil from Limiter. The plugin then reschedules the
// job and keeps its ticket, but the job has begun, and starts again. A job keeps one ticket.
//
// # What River does
//
//   - Only the leader brings back jobs that are snoozed for more than 5 s. A start needs some
//     seconds to elect one, and the death of a leader about 20. Jobs that are due by then come in a
//     burst, and keep to the limit.
//   - If a process is killed, River rescues its jobs after RescueStuckJobsAfter, by default an
//     hour. River counts an attempt of each, even of a job that only waited in a worker, and
//     discards it if MaxAttempts is 1. Keep RescueStuckJobsAfter longer than JobTimeout and the
//     seven seconds of waiting together, because JobTimeout begins after the wait.
//   - A rescheduled unique job stays unique. It gets no reservation at insertion.
//   - River takes due jobs of the highest priority first. Reservations have no priority.
//   - Reservations of jobs whose transaction is rolled back pass unused. After thousands of them,
//     jobs wait for as long as those would have taken. Resume of the Scheduler makes all
//     reservations void, and ends a hold.
//   - Give the store a *sql.DB of its own, with six connections. With AtInsert River has a
//     transaction open while the store books reservations. In one exhausted pool each would wait
//     for the other.
//   - Stop waits for the jobs that wait in workers, for up to seven seconds. To reschedule them
//     immediately, call weather.Queue().Close() before client.Stop(ctx). StopAndCancel and
//     SoftStopTimeout reschedule them as well.
//
// If each tenant has a limit, let Limiter return [outbound.Keyed.For] of a Keyed of Schedulers. It
// books at insertion as well. See the example Tenants.
package riverjobs
