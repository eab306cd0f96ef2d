// Package jobs schedules rate-limited jobs without blocking workers. Jobs wait in their job system.
//
//	bucket, err := outbound.NewSharedBucket(store, "shop", outbound.PerSecond(10))
//	scheduler := jobs.New(bucket, jobs.Config{PollInterval: 5 * time.Second}) // of the job system
//
//	permit, err := scheduler.Acquire(jobs.WithTicket(ctx, ticket), outbound.Cost{1})
//	if later, ok := jobs.AsLater(err); ok {
//		return reschedule(later.In, later.Ticket) // it has not run; it comes again with the ticket
//	}
//	if err != nil {
//		return err // it can never be admitted
//	}
//	defer permit.Done()
//
// # Reservations and queue
//
// A Scheduler books a reservation for each job, in the order of their arrival. A job whose
// reservation is far away gets a [Later] with a ticket, and the job system runs it again a head
// start before its reservation. It then waits for the rest in its worker, in a queue around the
// bucket. Only that queue admits jobs. So a job runs twice: once to book, and once at its
// reservation. It runs once if that is within a head start, or if [Scheduler.Book] has booked it.
//
// A ticket grants nothing. A forged, copied or lost ticket, and a job that comes early, late or
// twice, changes the order of jobs, but not how many are admitted. A job loses its reservation if
// it comes more than a poll interval and two head starts late and finds no capacity. It then books
// again, behind all jobs with reservations.
//
//	what happens                         what the Scheduler does                     what it costs
//	a job comes early                    reschedules it, ticket kept                 a run
//	it comes late                        lets it into the queue                      none, or a run
//	it never comes again                 its reservation passes                      a call's time
//	it is delivered twice                charges each                                order
//	a process crashes, a ticket is lost  books again when the job comes              a reservation
//	the API asks for a pause             reschedules jobs that are due in it, and    a run each
//	                                     moves all reservations: their order stays
//	Resume, other limits, a lost key     voids all tickets: jobs book again          a run each
//	the store is unavailable             reschedules for 1 to 5 s, ticket kept       runs
//	the job's context is canceled        reschedules immediately, ticket kept        a run
//	its deadline is before its capacity  reschedules until then, ticket kept         a run
//	its deadline passed before it came   returns ctx's error, which is no Later      an attempt
//	the queue is closed                  reschedules for a head start, ticket kept   a run
//	too many calls are in flight         reschedules for a poll interval, ticket kept runs
//	a reservation is beyond Config.Ahead reschedules without a ticket                runs
//	it needs the next period             reschedules until then, without a ticket    a run a period
//	its cost is above a capacity         returns an error that is no Later
//
// A Scheduler books nothing beyond the end of a calendar period or an [outbound.FixedWindow]. Jobs
// that need the next one come when it begins, spread over a poll interval in the order of their
// Laters in each process. A job that comes then for the first time may be before them.
//
// A Scheduler reschedules a job as often as it needs. To bound that, give the job's context a
// deadline that counts from when it was enqueued. A job that comes later gets ctx's error, and your
// job system ends it as a failed one.
//
// An adapter keeps the job system from counting a Later as a failure or an attempt. Log a Later
// that has an Err. If thousands of jobs with reservations are deleted, later jobs wait behind
// those. [Scheduler.Resume] voids them, and ends a hold.
//
// # When to use it
//
//	few jobs, many workers                  a queue with a MaxWait of minutes
//	more jobs than workers can wait with    a Scheduler
//	the program enqueues the jobs itself    a Scheduler, and Book when they are enqueued
//	a quota for each tenant                 an [outbound.Keyed] of Schedulers, and [Of] to book
//	several kinds of jobs for one API       Schedulers around one bucket share its reservations
//	the system carries no ticket            your own key for each job, for Later.In and an hour
//	jobs in a table of your own             [Do], and columns for time and ticket: example Table
//
// Set Config.PollInterval to how long the system takes to hand out a due job. A job waits in its
// worker for a head start, Config.HeadStart, and longer if it comes early. So the limits' rate
// times that time is how many workers wait. Keep it below the number of workers: 4 workers at 5
// jobs a second need a HeadStart of 200 ms.
//
// A Scheduler charges a job when it begins. If the job's http.Client is paced by the same bucket,
// that charge pays for the first request, and each further request is charged. Or pace the client
// alone: run the job by [Do] with [outbound.Unlimited], and pass its error to [AsLater]. A refused
// job then starts again, unless its own work has used most of its time. Bound that: example Table.
//
// Other limits of the bucket void all tickets. Jobs still come at their old times, and book again.
//
// # Costs and numbers
//
// A run makes one request to the reservations, one more if its ticket is void, and one to the
// bucket if it may be admitted. Learning of changes takes two more, once in a poll interval. A job
// without capacity in time makes up to five. A Scheduler in memory takes about four kilobytes.
//
// These numbers come from simulations of systems like asynq and River. They have 1,000 jobs at 10 a
// second, 5 processes of 10 or 400 workers, and polls of 1, 5 and 15 s. The ideal is 99.9 s.
//
//   - A job runs 1.9 to 2.0 times, booked before once, in 100 to 106 s. No crash loses a job.
//   - Three 429s that ask for 10 s each cost 1.0 to 1.35 more runs a job; 1.1 are the least. At
//     polls of 1 and 5 s 95 of 100 jobs are at most 25 positions out of order, at 15 s 120.
//   - If 1,000 jobs come 100 s late together, a job runs 2.7 times in the mean, at most 6 times.
//   - 100 tenants at 1 a second, one with 2,000 jobs: p95 of the 99 is 0.76 s, 0.77 s without it.
package jobs
