// Package riverjobs paces the jobs of River, the job queue in PostgreSQL: jobs that call an API under
// a limit wait in River's table, not in a worker, and run in their turn. A job that waits is no
// failure and no attempt, however often it is put back.
//
//	weather := line.New(bucket, line.Config{Poll: time.Second}) // River's FetchPollInterval
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
// It is a module of its own, which needs River 0.51 and no driver. All processes that share a limit
// need a bucket in one store, and River's users have one: package pgstore keeps buckets in PostgreSQL.
// The program in the folder example runs such a fleet.
//
// # What happens to a job
//
// [Plugin.Work] is around each job, as a middleware. A package [line] gives the job a place in time.
// If that is further away than a lead, which is 1 s, the job is snoozed until then, with the ticket
// of its place in its metadata, under "dripfeed_ticket". When it comes again it waits in its worker for
// the rest, calls, and has had two runs. With AtInsert the jobs get their places when they are inserted
// ([Plugin.InsertMany]), and most have one.
//
// A worker waits for two seconds at most: a Poll and a Lead. So some rate × 1 s workers wait while there
// is a backlog, and all others are free for other jobs: let a queue's MaxWorkers be more than the jobs
// that go in two seconds and in the time of a job.
//
//	the job has to wait, the API holds         snoozed, the ticket kept
//	the store is away                          snoozed for 1 to 5 s; an insertion goes on without a place
//	the job returns a ThrottledError           snoozed until RetryAfter; it starts anew then
//	its cost can never go                      cancelled: River calls no ErrorHandler, but tells by
//	                                           EventKindJobCancelled
//	the job fails                              as without the plugin; its next run gets a place anew
//	the API refuses the call, 429              as the job says. Its outbound.PermitFrom(ctx).Refused(pause)
//	                                           holds the calls of all processes, its own next one too,
//	                                           even if River retries before: then it is snoozed again
//	the client stops while the job waits       snoozed for 0 s: whoever is there next takes it
//	the line's Queue is closed                 snoozed for a lead
//
// None of those that are snoozed gets an error or an attempt. MaxAttempts may be 1.
//
// # What a put-back costs
//
// River takes the job and writes what has become of it, in batches with others, and the store is
// asked once for each run: it looks the place up, or books one. The table of the README tells how many runs
// jobs have. Each run adds a name to the job's attempted_by, of which River keeps 100.
//
// # Take a line or a Transport
//
// A call is charged by whoever admits it. So the http.Client of a job that a line admits has no limiter
// for the same bucket, or each call is charged twice. Take the client's where a job makes several calls: let
// Limiter return nil for it, and give the Transport the line. The plugin then puts the job back all the same,
// and brings its ticket, which is in the job's ctx. Such a job starts anew each time.
//
// # What River does by itself
//
//   - Jobs that are away for more than 5 s come back by the client that leads. After a start, or the
//     death of a leader, it takes some seconds until there is one, up to 15. Jobs that
//     are due by then come in a bunch, and keep to the limit.
//   - The jobs of a process that is killed come back after RescueStuckJobsAfter, an hour as River comes,
//     and River counts an attempt of each, also of those that only waited in a worker. So
//     a job with MaxAttempts 1 is then discarded. Two seconds of waiting count to that
//     hour, and not to the JobTimeout, which begins when the job does.
//   - A unique job stays unique while it is put back: its duplicates are dropped for as long. None gets a place
//     at insertion.
//   - Of jobs that are due, River takes those of higher priority first. Places take no notice of it.
//
// # Connections
//
// Give the store a *sql.DB of its own, of six connections. With AtInsert River has a transaction open
// while the places are booked. Both would wait for each other in a pool that is used up.
//
// # How it shuts down
//
// Stop lets jobs that wait in workers have their turn, for up to two seconds. To have them back in River
// at once, close the line first:
//
//	weather.Queue().Close()
//	err := client.Stop(ctx)
//
// StopAndCancel, and the SoftStopTimeout, put them back as well, without an error.
//
// # Tenants
//
// A limit for each tenant is an [outbound.Keyed] of lines: Limiter returns its For(tenant). Example_tenants
// shows how their places are booked at insertion.
package riverjobs
