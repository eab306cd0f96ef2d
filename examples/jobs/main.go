// Command jobs paces the jobs of a job system by one bucket, in three ways:
//
//	go run ./examples/jobs
//
// The system looks for due jobs every so often, and a job that has no capacity goes back to it.
// With a queue alone a job comes again and again. A jobs.Scheduler gives it a time. Look at how
// often each job runs: twice with a Scheduler, and once if its reservation is booked when the job
// is enqueued. examples/internal/jobsystem stands for your job system.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/jobsystem"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

const (
	shows     = "Background jobs wait for their reservations at one API."
	perSecond = 25 // calls that the API allows
	reports   = 40
)

var example = cli.Example{Name: "jobs", Usage: shows + "\n\n\tgo run ./examples/jobs", New: cli.NoFlags(run)}

func main() { example.Main() }

// way is how the jobs are paced.
type way struct {
	name    string
	limiter func(*outbound.Bucket) outbound.Limiter
	insert  bool // reservations are booked when the jobs are enqueued
}

var ways = []way{
	{name: "queue", limiter: jobsystem.ByQueue},
	{name: "jobs", limiter: jobsystem.ByScheduler},
	{name: "booked", limiter: jobsystem.ByScheduler, insert: true},
}

// run sends the reports of a job system in each of the ways.
func run(ctx context.Context, out io.Writer) error {
	bucket, err := outbound.NewBucket("shop", outbound.PerSecond(perSecond))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n%d reports come from a job system that looks every %v.\nHow often each of them runs:\n", shows, reports, jobsystem.Poll)
	var sent outboundtest.History
	for _, w := range ways {
		start := time.Now()
		system, err := w.send(ctx, bucket, &sent)
		if err != nil {
			return err
		}
		runs, picture := 0, ""
		for _, j := range system.Jobs {
			runs += j.Runs
			picture += fmt.Sprint(min(j.Runs, 9))
		}
		fmt.Fprintf(out, "  %-7s%s\n         %d runs, all sent in %.1f s\n", w.name, picture, runs, time.Since(start).Seconds())
	}
	fmt.Fprintf(out, "\nIn no second did more than %.0f reports go.\nThe API allows %d.\n", sent.Worst(time.Second).Units, perSecond)
	return nil
}

// send sends the reports in one way.
func (w way) send(ctx context.Context, b *outbound.Bucket, sent *outboundtest.History) (*jobsystem.System, error) {
	limiter := w.limiter(b)
	system := &jobsystem.System{Workers: reports, Do: outbound.Wrap(limiter, outbound.Cost{1}, func(ctx context.Context, _ *jobsystem.Job) error {
		sent.Add(time.Now(), 1)
		return jobsystem.API(ctx)
	})}
	costs := make([]outbound.Cost, reports)
	for i := range costs {
		system.Jobs = append(system.Jobs, new(jobsystem.Job))
		costs[i] = outbound.Cost{1}
	}
	if w.insert {
		reservations, err := limiter.(*jobs.Scheduler).Book(ctx, costs...)
		if err != nil {
			return nil, err
		}
		for i, r := range reservations {
			system.Jobs[i].At, system.Jobs[i].Ticket = r.At, r.Ticket
		}
	}
	return system, system.Run(ctx)
}
