// Package riverjobs paces the jobs of River, the job queue in PostgreSQL. Jobs that call an API
// under a limit wait in River's table, not in a worker, and run in their turn. A job that waits
// gets no error and loses no attempt, however often it is rescheduled.
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
// It is a module of its own, which imports River and no driver. All processes that share a limit
// need a bucket in one store, and River's users have one: package pgstore keeps buckets in
// PostgreSQL. The program in the folder example runs such a fleet.
//
// # What happens to a job
//
// [Plugin.Work] is around each job, as a middleware. A [jobs.Scheduler] gives the job a
// reservation. If that is further away than a head start, which is 1 s, the plugin snoozes the job
// until then, with the ticket of its reservation in its metadata, under "dripfeed_ticket". When the
// job comes again it waits for the rest in its worker, and calls: it has had two runs. With
// AtInsert, jobs get their reservations when they are inserted ([Plugin.InsertMany]), and most of
// them have one run.
//
// While there is a backlog as many workers wait as jobs go in a head start, and all others are free
// for other jobs. A worker waits for seven seconds at most, a Poll and two Leads, where
// the calls are behind their reservations. A Poll of 1 s, which is the FetchPollInterval of River
// as it comes, bounds that at three. It saves workers where they are few, and costs runs where the
// machine is busy: 500 jobs at 20 per second had 2.2 and 1.3 runs each instead of 2.0 and 1.1,
// without and with AtInsert.
//
//	the job has to wait, or the API holds    snoozed, with its ticket
//	the store is away                        snoozed for 1 to 5 s; an insertion goes on without reservations.
//	                                         The Observe of the store tells of it, and River does not
//	the job returns a ThrottledError         snoozed until its RetryAfter; it starts anew then
//	its cost can never go                    cancelled: River calls no ErrorHandler for that, and tells it
//	                                         by EventKindJobCancelled
//	the job fails                            as without the plugin; its next run gets a new reservation
//	the client stops while the job waits     snoozed for 0 s: whoever comes next takes it
//	the Scheduler's Queue is closed          snoozed for a head start
//
// None that is snoozed gets an error or an attempt, so MaxAttempts may be 1.
//
// Where the API answers 429, let the job say so by outbound.PermitFrom(ctx).Refused(pause), and
// return its error. That is a failure, as River counts them. The bucket then holds the calls of all
// processes. With [RetryPolicy] in Config.RetryPolicy River tries the job again when the pause is
// over; else, and where its worker has a NextRetry, it may try it before, and the plugin snoozes
// it, which is a run more.
//
// # What a reschedule costs
//
// River takes the job and writes what has become of it, together with others. The store is asked
// once for each run, and once more where the job may call. The README tells how many runs jobs
// have. River keeps the names of the last 100 clients that have taken a job in its attempted_by.
//
// # Take a Scheduler or a Transport
//
// A Scheduler charges the job when it begins. If the job's http.Client has a limiter of the same
// bucket, that charge pays for the first request. Where a job makes several calls, you can also give
// the Scheduler to the client's Transport, and let Limiter return nil for the job. The plugin then
// reschedules the job all the same and brings its ticket, which is in the job's ctx; but the job has
// begun, and starts anew. A job brings one ticket, so it can have one reservation.
//
// # What River does by itself
//
//   - Only the client that leads brings back jobs that are away for more than 5 s. After a start some seconds
//     pass until one leads, and after the death of a leader some 20. The jobs that are due by then come in a
//     bunch, and keep to the limit.
//   - The jobs of a process that is killed come back after RescueStuckJobsAfter, which is an hour as River
//     comes. River counts an attempt of each, also of those that only waited in a worker: one whose
//     MaxAttempts is 1 is discarded. Keep RescueStuckJobsAfter longer than JobTimeout and the seven seconds together,
//     because JobTimeout begins behind the wait.
//   - A unique job that is rescheduled stays unique: River drops its duplicates meanwhile. It gets no reservation at
//     insertion.
//   - Of the jobs that are due River takes those of the highest priority first. Reservations know no priority.
//   - Reservations of jobs whose transaction is rolled back pass unused. After thousands of them those who come next
//     wait for as long as these would have taken: the Scheduler's Resume makes all reservations void, and ends a hold.
//
// # Connections
//
// Give the store a *sql.DB of its own, with six connections. With AtInsert River has a transaction
// open while the store books reservations, and in one pool that is used up each would wait for the
// other.
//
// # How it shuts down
//
// Stop waits until the jobs that wait in workers have had their turn, for up to seven seconds. To
// reschedule them at once, close the Scheduler's Queue first:
//
//	weather.Queue().Close()
//	err := client.Stop(ctx)
//
// StopAndCancel and the SoftStopTimeout reschedule them as well.
//
// # Tenants
//
// Where each tenant has a limit, Limiter returns what [outbound.Keyed.For] of a Keyed of Schedulers
// returns for the tenant, and books at insertion there, too. See the example Tenants.
//
// # The files
//
//	plugin.go  Plugin, and Work
//	insert.go  InsertMany
//
// The example and the tests start PostgreSQL by internal/pgserver.
package riverjobs
