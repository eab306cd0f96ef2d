package jobs_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Jobs in a table of your own. A job needs a column for the time of its next run, and one for its
// ticket. A third one counts how often a limiter inside of it, as that of its http.Client, has made
// it start again. A job whose limits or deadline never let it finish then ends:
//
//	CREATE TABLE jobs (
//		id bigserial PRIMARY KEY, payload text NOT NULL, restarts int NOT NULL DEFAULT 0,
//		run_at timestamptz NOT NULL DEFAULT now(), ticket text NOT NULL DEFAULT '')
//	CREATE INDEX ON jobs (run_at)
//
// Each worker takes the first job that is due, and either deletes it or writes its next run. The
// database of this example is a slice, and each of its methods has the statement that it stands for.
func Example_table() {
	const poll = 50 * time.Millisecond // how often a worker without a job looks for one; some seconds
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("shop", outbound.PerSecond(20))) // NewSharedBucket for several processes
	scheduler := jobs.New(bucket, jobs.Config{PollInterval: poll, HeadStart: 100 * time.Millisecond})
	db := &table{}

	// Jobs with a reservation run once.
	runs, err := scheduler.Book(ctx, slices.Repeat([]outbound.Cost{{1}}, 10)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, run := range runs {
		db.insert(run.At, run.Ticket)
	}
	// Jobs that another program inserts book one at their first run, and leave at their second.
	for range 10 {
		db.insert(time.Now(), "")
	}

	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for db.count() > 0 {
				job, ok := db.take()
				if !ok {
					time.Sleep(poll)
					continue
				}
				ran, pause, err := jobs.Do(jobs.WithTicket(ctx, job.ticket), scheduler, outbound.Cost{1}, call)
				if ran {
					job.restarts++
				}
				if later, ok := jobs.AsLater(err); ok && job.restarts < 100 { // a limiter is the cause, and this is no failure
					db.runAgain(job.id, later.In, later.Ticket, job.restarts)
				} else if err != nil { // count attempts here, and give up after some
					db.runAgain(job.id, max(pause, 10*time.Second), "", 0)
				} else {
					db.remove(job.id)
				}
			}
		})
	}
	workers.Wait()
	fmt.Println("all jobs are done")
	// Output: all jobs are done
}

// call calls the API.
func call(context.Context) error { return nil }

type job struct {
	id       int
	runAt    time.Time
	ticket   string
	restarts int
}

// table stands for a table of a database.
type table struct {
	mu   sync.Mutex
	last int
	jobs []job
}

// insert enqueues a job.
//
//	INSERT INTO jobs (payload, run_at, ticket) VALUES ($1, $2, $3)
func (t *table) insert(runAt time.Time, ticket string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.jobs = append(t.jobs, job{id: t.last, runAt: runAt, ticket: ticket})
}

// take returns the first job that is due, and sets its next run a minute ahead: if the worker
// crashes, another one takes the job then. No job takes longer, with its wait for the limiter.
//
//	UPDATE jobs SET run_at = now() + interval '1 minute' WHERE id = (
//		SELECT id FROM jobs WHERE run_at <= now() ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED)
//	RETURNING id, payload, ticket, restarts
func (t *table) take() (job, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.jobs, func(a, b job) int { return a.runAt.Compare(b.runAt) })
	if len(t.jobs) == 0 || t.jobs[0].runAt.After(time.Now()) {
		return job{}, false
	}
	first := t.jobs[0]
	t.jobs[0].runAt = time.Now().Add(time.Minute)
	return first, true
}

// runAgain writes the next run of a job.
//
//	UPDATE jobs SET run_at = now() + $2, ticket = $3, restarts = $4 WHERE id = $1
func (t *table) runAgain(id int, in time.Duration, ticket string, restarts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.jobs {
		if t.jobs[i].id == id {
			t.jobs[i].runAt, t.jobs[i].ticket, t.jobs[i].restarts = time.Now().Add(in), ticket, restarts
		}
	}
}

// remove removes a job that is done.
//
//	DELETE FROM jobs WHERE id = $1
func (t *table) remove(id int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.jobs = slices.DeleteFunc(t.jobs, func(j job) bool { return j.id == id })
}

// count returns the number of jobs.
func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.jobs)
}
