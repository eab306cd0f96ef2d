package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// way is how the jobs of a job system are paced.
type way struct {
	name    string
	limiter func(*outbound.Bucket) outbound.Limiter
	insert  bool // reservations are booked when the jobs are enqueued
}

var ways = []way{
	{name: "queue", limiter: throughQueue},
	{name: "jobs", limiter: throughScheduler},
	{name: "booked", limiter: throughScheduler, insert: true},
}

// throughScheduler lets a job wait in its worker for the last part of its time alone.
func throughScheduler(b *outbound.Bucket) outbound.Limiter {
	return jobs.New(b, jobs.Config{Poll: poll, Lead: lead, Early: lead / 2})
}

// throughQueue is what one does without a Scheduler: a job waits in its worker at most until the
// system looks again.
func throughQueue(b *outbound.Bucket) outbound.Limiter {
	return early{queue.New(b, queue.Config{MaxWait: poll})}
}

// early reschedules a job that has no room until the last look before it has. Rescheduled for the
// whole time, the job would come up to a look too late, and the queue would have run dry.
type early struct{ *queue.Queue }

func (l early) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := l.Queue.Acquire(ctx, c)
	if later, ok := jobs.After(err); ok {
		return p, &jobs.Later{In: later.In - poll}
	}
	return p, err
}

// sendAll sends the reports of a job system in each of the ways.
func sendAll(ctx context.Context, out io.Writer, b *outbound.Bucket, api *api) error {
	fmt.Fprintf(out, "\n%d reports come from a job system that looks every %v.\nHow often each of them runs:\n", reports, poll)
	for _, w := range ways {
		start := time.Now()
		system, err := w.send(ctx, b, api)
		if err != nil {
			return err
		}
		runs, picture := 0, ""
		for _, j := range system.jobs {
			runs += j.runs
			picture += fmt.Sprint(min(j.runs, 9))
		}
		fmt.Fprintf(out, "  %-7s%s\n         %d runs, all sent in %.1f s\n", w.name, picture, runs, time.Since(start).Seconds())
	}
	return nil
}

// send sends the reports in one way.
func (w way) send(ctx context.Context, b *outbound.Bucket, api *api) (*jobSystem, error) {
	limiter := w.limiter(b)
	system := &jobSystem{every: poll, workers: reports, do: outbound.Wrap(limiter, outbound.Cost{1}, api.sendJob)}
	batch := make([]job, reports)
	if w.insert {
		costs := make([]outbound.Cost, reports)
		for i := range costs {
			costs[i] = outbound.Cost{1}
		}
		reservations, err := limiter.(*jobs.Scheduler).Book(ctx, costs...)
		if err != nil {
			return nil, err
		}
		for i, r := range reservations {
			batch[i].at, batch[i].ticket = r.At, r.Ticket
		}
	}
	for i := range batch {
		system.add(&batch[i])
	}
	return system, system.run(ctx)
}

// serveAll runs the jobs of several tenants, one of whom has many.
func serveAll(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "\n%d tenants share %d workers. Each may call %d times a\nsecond. The longest wait of a job:\n", len(tenants), tenantWorkers, tenantRate)
	for _, w := range ways[:2] {
		longest, err := w.serve(ctx)
		if err != nil {
			return err
		}
		for i, t := range tenants {
			name := ""
			if i == 0 {
				name = w.name
			}
			wide := int(longest[t.name].Seconds() * 10)
			bar := strings.Repeat("█", min(max(1, wide), 30)) // a busy machine may take longer
			fmt.Fprintf(out, "  %-7s%s, %2d jobs  %s %.1f s\n", name, t.name, t.jobs, bar, longest[t.name].Seconds())
		}
	}
	return nil
}

// tenants have jobs that come evenly in a second, but for those of the first, which come at once.
var tenants = []struct {
	name string
	jobs int
}{{"acme", 40}, {"bolt", 4}, {"cone", 3}}

const (
	tenantWorkers = 4
	tenantRate    = 20 // calls in a second
)

// serve runs the tenants' jobs in one way, and returns each tenant's longest wait.
func (w way) serve(ctx context.Context) (map[string]time.Duration, error) {
	limiters := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		b, err := outbound.NewBucket(tenant, outbound.PerSecond(tenantRate))
		if err != nil {
			return nil, err
		}
		return w.limiter(b), nil
	}}
	system := &jobSystem{every: poll, workers: tenantWorkers, do: func(ctx context.Context, j *job) error {
		p, err := limiters.Acquire(ctx, j.tenant, outbound.Cost{1})
		if err != nil {
			return err
		}
		defer p.Done()
		return new(api).sendJob(ctx, j)
	}}
	start := time.Now()
	come := map[*job]time.Time{}
	for i, t := range tenants {
		for n := range t.jobs {
			at := start
			if i > 0 {
				at = at.Add(time.Second * time.Duration(n) / time.Duration(t.jobs))
			}
			j := &job{tenant: t.name, at: at}
			come[j] = at
			system.add(j)
		}
	}
	if err := system.run(ctx); err != nil {
		return nil, err
	}
	longest := map[string]time.Duration{}
	for j, at := range come {
		longest[j.tenant] = max(longest[j.tenant], j.done.Sub(at))
	}
	return longest, nil
}
