// Package jobs schedules rate-limited jobs without blocking workers. Jobs wait in their job system.
//
//	bucket, err := outbound.NewSharedBucket(store, "shop", outbound.PerSecond(10))
//	scheduler := jobs.New(bucket, jobs.Config{Poll: 5 * time.Second}) // the system looks for due jobs every 5 s
//
//	permit, err := scheduler.Acquire(jobs.WithTicket(ctx, ticket), outbound.Cost{1})
//	if later, ok := jobs.After(err); ok {
//		return putBack(later.In, later.Ticket) // it has not run; it comes again with the ticket
//	}
//	if err != nil {
//		return err // it can never go
//	}
//	defer permit.Done()
//
// Workers are few, and a job that waits in one keeps others out. A job that is refused and put back
// comes again too early, and again, or so late that the API stands idle. A line says to each job
// when its turn is. The job stays in the job system until then, without a worker, and runs twice:
// once to hear of its place, and once at its turn. Where its place is booked when it is enqueued,
// it runs once.
//
// # Desk and gate
//
// A line has two parts. The desk is a bucket with the same limits, beside the job's bucket
// ([outbound.Bucket.Beside]), in which every job has a place in time: who comes without a ticket books
// one behind all others. The gate is a queue around the bucket itself, and it alone admits. A job
// goes to the gate when its place is near, and waits there for the rest, in its worker.
//
// So a ticket is no permit. One that was forged, copied or lost, and a job that comes early, late,
// twice or never, changes the order in which jobs go, and never how many go. Callers that are no
// jobs take from the bucket beside the line, and jobs that come late lose nothing but their turn.
// Tickets that were permits could not do any of that: a job that is delivered twice, as all systems
// do now and then, would go twice for one charge.
//
//	what happens                         what the line does                          what it costs
//	it comes early                       sends it back with its ticket               a run
//	it comes late                        lets it to the gate at once                 nothing
//	it never comes back                  its place passes; who is there goes         a call's time at most
//	it is delivered twice                each pays at the gate                       order
//	a process crashes, a ticket is lost  the job books anew when it comes            a place
//	the API asks for a pause             sends back who comes in it, and holds the   a run for each job
//	                                     desk: places keep their order               that was due in it
//	Resume, new limits, a lost key       tickets are void: jobs book anew            a run for each job
//	the store is away                    sends it back for 1 to 5 s, ticket kept     runs
//	its ctx ends                         sends it back at once, ticket kept          a run
//	the queue is closed                  sends it back for a lead, ticket kept       a run
//	the limit on calls at once is full   sends it back for a poll, ticket kept       runs
//	its place is beyond Config.Ahead     sends it back without one                   runs
//	its cost can never go                an error that is no [Later]
//
// None of these is a failure of the job, or an attempt: an adapter sees to it that the system does
// not count it as one. A [Later] with an Err that is not nil is worth a line in the log.
//
// Where thousands of jobs with places never come back, as after a queue is emptied by hand, those who
// come next are sent away behind all of these places, and the API stands idle meanwhile. [Scheduler.Resume]
// makes the places void. It ends a hold of the API as well.
//
// # Which arrangement for which load
//
//	few jobs, many workers                  a queue with a MaxWait of minutes: a job waits in its worker
//	more jobs than go while workers wait    a line
//	the program enqueues the jobs itself    a line, and Book when they are enqueued
//	a quota for each tenant                 an [outbound.Keyed] of lines
//	several kinds of jobs for one API       a line for all, or one for each around the same bucket: they have one desk
//	nothing in the system carries a ticket  a key of your own for each job, which lives for [Later].In and an hour
//
// Set Config.Poll to how long the system takes to hand out a job that is due. The jobs that wait in
// workers are as many as go in a lead and in the time by which jobs come early or late: let that be well
// below the number of workers, by a shorter Config.Lead if need be. A lead need not be as long as a poll:
// the API stands idle once, for about a poll, when the first jobs come back, and not for each job.
//
// A line charges a job when it begins. If the job's http.Client is paced as well, by the same bucket, the
// job is charged twice: take the line, or the client, and not both. Where a job makes several calls, let
// the line count with a [outbound.Cost] of as many, or pace the client, and hand what [After] makes of
// its error back to the job system.
//
// # At insertion, or at the first run
//
// [Scheduler.Book] gives jobs their places when they are enqueued, thousands of them in one trip: enqueue
// each to run at its At, with its Ticket. A job without a place gets one when it runs first. That costs
// a run, and a system that hands jobs out in order touches all that are enqueued before those that
// came back: 100 000 of them take it 20 s and more.
//
// # Tenants
//
//	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
//		b, err := outbound.NewSharedBucket(store, tenant, quotaOf(tenant)...)
//		return jobs.New(b, jobs.Config{}), err
//	}}
//	acme := tenants.For("acme")
//	books, ok := jobs.Of(acme) // whether or not somebody observes it
//
// A tenant with thousands of jobs more than its quota has a lead's worth of them in workers, and the others'
// jobs find the rest free. With a queue in place of the line those jobs fill the workers as soon as
// the quota times MaxWait is above their number. The Keyed drops a line of a bucket in this process
// when its places have passed. Those of a shared bucket are in the store, and it drops such a line when
// nobody waits in it.
//
// # Limits that change
//
// [Scheduler.SetLimits] and [Scheduler.Resume] are the bucket's, for the desk as well. Where a program without a
// line calls the bucket's own, the desk follows as soon as a process with a line hears of it: the
// limits with the next job after one that was at the gate. While all jobs are sent back nobody is at
// the gate, and so a line that sends jobs back asks the bucket once in a poll. Lines that live for less
// than a poll do so, too, taken together. If the desk is held for longer than the gate can be behind by
// then, which is more than a MaxWait and a lead, it ends the desk's hold.
//
// Tickets are void after other limits and after a Resume. Jobs that are away still come at the times that they
// were told, and book anew; if the limits are higher now, have the system run them at once.
//
// # What it costs
//
// A run takes a trip to the desk, and one more where its ticket is void. Who is admitted takes at the
// gate what a queue takes: 3 trips to a store in all for a job that runs twice, 2 for one that was booked
// before. Who is refused at the gate may hold the desk, by two more. Once in a poll a line that sends jobs back takes
// three more. A line of a bucket in this process takes some four kilobytes.
//
// # Numbers
//
// From the simulations in this package's tests, in virtual time: 1 000 jobs for an API of 10 a second, which takes
// 99.9 s; 5 processes; a store 2 ms away; one system like asynq (whole seconds; forwarders that look each
// poll) and one like River (a leader that looks every 5 s; fetches each poll). Waiting: workers, in the mean.
//
//	asynq-like, polls of 1 / 5 / 15 s   runs a job           time (s)           waiting          places displaced, p95
//	5 x 10 workers
//	  a bare bucket                     126 / 130 / 130      385 / 923 / 1840   0                486 / 502 / 504
//	  a queue with MaxWait of a poll    40 / 1 / 1           102 / 100 / 100    19 / 49 / 49     704 / 0 / 0
//	  a line                            1.99 / 1.99 / 1.99   101 / 102 / 106    8 / 16 / 34      7 / 17 / 24
//	  a line, booked before             1.00 / 1.00 / 1.00   101 / 102 / 106    9 / 15 / 34      6 / 15 / 24
//	5 x 400 workers
//	  a queue with MaxWait of a poll    46 / 17 / 4.6        101 / 100 / 101    16 / 124 / 329   696 / 755 / 752
//	  a line                            1.99 / 1.99 / 1.99   101 / 102 / 106    8 / 15 / 38      6 / 15 / 43
//	  a line, booked before             1.00 / 1.00 / 1.00   101 / 102 / 106    9 / 15 / 37      4 / 14 / 42
//	River-like
//	5 x 10 workers
//	  a queue with MaxWait of a poll    13 / 1 / 1           100 / 101 / 103    39 / 46 / 44     769 / 0 / 0
//	  a line                            2.01 / 1.97 / 1.92   101 / 102 / 104    19 / 25 / 34     17 / 22 / 28
//	5 x 400 workers
//	  a queue with MaxWait of a poll    444 / 207 / 93       100 / 101 / 103    19 / 181 / 344   716 / 648 / 848
//	  a line                            1.99 / 1.99 / 1.99   100 / 100 / 101    9 / 10 / 10      8 / 14 / 14
//	  a line, booked before             1.00 / 1.00 / 1.00   100 / 100 / 101    10 / 14 / 22     9 / 0 / 0
//
// Jobs are displaced by about as many as become due while no process looks: with a poll of 15 s, up to 64 in this
// table, and by more where the processes happen to look at about the same time.
//
// With a hold of 60 s in the middle a job runs 2.7 to 2.8 times, or 1.7 if it was booked before, and
// 0.3 to 2.7 s are lost. With a tenth of the rate taken by others, none of whom is refused, it runs 2.0
// to 2.9 times. 100 000 jobs run 2.0 to 3.0 times, booked before once. A thousand jobs that come late
// at the same moment, as after all workers were away, find room for 70 of them in each process. Who has
// none is told to come back as far behind those who wait as it was due after them, but in no more than
// four times as long as until there is room: they run 3.4 times in one process and 4.1 in three, if
// there are as many workers, and one of them 12 times. Jobs that come on time meanwhile are sent back
// as soon as a job that is a minute late has waited in vain: of 600 late jobs beside 9 a second on time
// the last goes after 70 s.
//
//	100 tenants, one with 2 000 or 20 000 jobs; 5 x 10 workers; poll 1 s   runs      the others' waits, p50 / p95 / longest
//	1 a second each, asynq-like: a queue with MaxWait of a poll            307 925   0.32 / 0.97 / 3.3 s
//	  lines                                                                5 527     0.15 / 0.74 / 3.0 s
//	  without the hot tenant                                               3 210     0.15 / 0.73 / 2.3 s
//	20 a second each, asynq-like: a queue with MaxWait of a poll           13 229    none of 2 075 begins in 220 s
//	  lines                                                                26 543    0.56 / 0.93 / 4.0 s
//	  without the hot tenant                                               2 173     0.13 / 0.44 / 0.9 s
//	20 a second each, River-like: lines, the hot tenant's booked before    6 597     0.03 / 0.08 / 0.6 s
//
// # What others do
//
//   - Sidekiq Enterprise puts a job that is over its limit back with a delay that grows with each try, plus chance.
//     The delay knows nothing of how many wait, so the more jobs there are, the longer the API stands idle.
//   - Oban Pro counts in the scheduler, for a queue or for parts of it by a job's arguments, and hands out no job
//     beyond that. So does BullMQ, for a queue, and its Pro for groups. No job runs in vain. These limits are of the
//     jobs that start: they do not hear of a 429, unless a job tells, nor of callers beside the queue, and jobs in
//     two queues for one API have two limits.
//   - Temporal has limits for a task queue, and for its fairness keys, in tasks that are handed out. They bind
//     where every activity of the task queue calls the same API. What is said of Oban holds for them.
//   - River and asynq have no limit on rates of their own: they have a way to put a job back, and that is
//     what a line wants.
//
// # The files
//
//	scheduler.go Scheduler: Acquire, and what is the desk's and the gate's together
//	place.go   Place and Book: places before the first run
//	booker.go  Of: who books places in a limiter, also in that of a key of a Keyed
//	crowd.go   crowd: the jobs that wait at the gate
//	do.go      Do: what adapters of job systems need
//	later.go   Later: when a job is to come back, and why; tickets in a ctx
package jobs
