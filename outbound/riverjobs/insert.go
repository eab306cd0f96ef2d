package riverjobs

import (
	"context"
	"reflect"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// batch are jobs of one insertion that share a Scheduler.
type batch struct {
	jobs  []*rivertype.JobInsertParams
	costs []outbound.Cost
}

// schedulerInterval is how far ahead River's scheduler looks. River makes a job that is snoozed for
// less available immediately, for its time.
const schedulerInterval = 5 * time.Second

// InsertMany implements [rivertype.JobInsertMiddleware]. With AtInsert it books reservations for
// the jobs, in their order, and schedules each for its own. It makes one request to the store for
// each Scheduler, before the insertion, while River has its transaction open. It books with
// limiters that contain a Scheduler: see [jobs.Of]. A client that only inserts jobs needs the
// plugin as well.
//
// A job that has a ScheduledAt, is pending, or is unique books when it is first worked. River drops
// the duplicate of a unique job, whose reservation would pass unused. If booking fails, for
// instance because the store is unavailable, all jobs of that Scheduler book when they are first
// worked, and the insertion goes on.
//
// The reservation of a job that is never worked, because it is deleted or its transaction is rolled
// back, passes unused, and another call leaves at its time.
func (p *Plugin) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	if p.AtInsert && p.Limiter != nil { // Work reports a nil Limiter
		for b, all := range p.batches(params) {
			runs, _ := b.Book(ctx, all.costs...) // none after an error
			for i, run := range runs[:min(len(runs), len(all.jobs))] {
				schedule(all.jobs[i], run)
			}
		}
	}
	return doInner(ctx)
}

// batches returns the jobs that need a reservation, by their Scheduler.
func (p *Plugin) batches(params []*rivertype.JobInsertParams) map[jobs.Booker]*batch {
	all := make(map[jobs.Booker]*batch)
	for _, job := range params {
		if job.State != rivertype.JobStateAvailable || len(job.UniqueKey) > 0 {
			continue
		}
		limiter, cost := p.Limiter(job.Kind, job.Queue, job.EncodedArgs)
		b, ok := jobs.Of(limiter)
		if !ok || !reflect.ValueOf(b).Comparable() {
			continue
		}
		if all[b] == nil {
			all[b] = new(batch)
		}
		all[b].jobs = append(all[b].jobs, job)
		all[b].costs = append(all[b].costs, cost)
	}
	return all
}

// schedule has a job run at its reservation.
func schedule(job *rivertype.JobInsertParams, run jobs.Run) {
	if in := time.Until(run.At); in > 0 {
		job.ScheduledAt = &run.At
		if in > schedulerInterval {
			job.State = rivertype.JobStateScheduled
		}
	}
	if run.Ticket != "" { // without it the job is only out of order
		job.Metadata = with(job.Metadata, ticketKey, run.Ticket)
	}
}
