package jobs_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// A worker of a job system: a job over the limit is rescheduled, with the ticket in its headers.
func ExampleScheduler() {
	bucket := outbound.Must(outbound.NewBucket("shop", outbound.PerMinute(6)))
	scheduler := jobs.New(bucket, jobs.Config{})
	work := func(ctx context.Context, name string, headers map[string]string) error {
		permit, err := scheduler.Acquire(jobs.WithTicket(ctx, headers["ticket"]), outbound.Cost{1})
		if later, ok := jobs.AsLater(err); ok {
			headers["ticket"] = later.Ticket
			fmt.Println(name, "runs again in about", later.In.Round(10*time.Second))
			return nil
		}
		if err != nil {
			return err
		}
		defer permit.Done()
		fmt.Println(name, "runs")
		return nil
	}
	for _, name := range []string{"first", "second", "third"} {
		if err := work(context.Background(), name, map[string]string{}); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// first runs
	// second runs again in about 10s
	// third runs again in about 20s
}

// Reservations that are booked when the jobs are enqueued: each job runs once.
func ExampleScheduler_Book() {
	bucket := outbound.Must(outbound.NewBucket("shop", outbound.PerMinute(6)))
	scheduler := jobs.New(bucket, jobs.Config{})
	start := time.Now()
	reservations, err := scheduler.Book(context.Background(), outbound.Cost{1}, outbound.Cost{1}, outbound.Cost{1})
	if err != nil {
		fmt.Println(err)
	}
	for i, r := range reservations {
		in := max(0, r.At.Sub(start)).Round(10 * time.Second)
		fmt.Println("enqueue job", i, "to run in about", in, "with a ticket:", r.Ticket != "")
	}
	// Output:
	// enqueue job 0 to run in about 0s with a ticket: true
	// enqueue job 1 to run in about 10s with a ticket: true
	// enqueue job 2 to run in about 20s with a ticket: true
}

// A Scheduler for each tenant: one that has many jobs leaves the workers to the rest.
func ExampleScheduler_tenants() {
	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		b, err := outbound.NewBucket(tenant, outbound.PerMinute(6))
		if err != nil {
			return nil, err
		}
		return jobs.New(b, jobs.Config{}), nil
	}}
	for _, tenant := range []string{"acme", "acme", "bolt"} {
		permit, err := tenants.Acquire(context.Background(), tenant, outbound.Cost{1})
		if later, ok := jobs.AsLater(err); ok {
			fmt.Println(tenant, "runs again in about", later.In.Round(10*time.Second))
			continue
		}
		fmt.Println(tenant, "runs")
		permit.Done()
	}
	// Output:
	// acme runs
	// acme runs again in about 10s
	// bolt runs
}
