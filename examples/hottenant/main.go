// Command hottenant runs the jobs of several tenants, each with a quota of its own, on a few
// workers that they share:
//
//	go run ./examples/hottenant
//
// One tenant has far more jobs than its quota admits. With queues those jobs wait in the workers,
// and the other tenants' jobs wait for a worker. With a jobs.Scheduler for each tenant they wait in
// the job system. Look at how long the other tenants wait. The job system is in internal/jobsystem.
package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/jobsystem"
	"github.com/dripfeed/dripfeed/outbound"
)

const (
	shows     = "A tenant with many jobs leaves the workers to the rest."
	workers   = 4
	perSecond = 20 // calls of a tenant
)

var example = cli.Example{Name: "hottenant", Usage: shows + "\n\n\tgo run ./examples/hottenant", New: cli.NoFlags(run)}

func main() { example.Main() }

// tenants have jobs that come evenly in a second; those of the first come in one burst.
var tenants = []struct {
	name string
	jobs int
}{{"acme", 40}, {"bolt", 4}, {"cone", 3}}

// ways are how the jobs of a tenant are paced.
var ways = []struct {
	name    string
	limiter func(*outbound.Bucket) outbound.Limiter
}{{"queue", jobsystem.ByQueue}, {"jobs", jobsystem.ByScheduler}}

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n%d tenants share %d workers. Each may call %d times a\nsecond. The longest wait of a job:\n", shows, len(tenants), workers, perSecond)
	for _, w := range ways {
		longest, err := serve(ctx, w.limiter)
		if err != nil {
			return err
		}
		name := w.name
		for _, t := range tenants {
			wait := longest[t.name].Seconds()
			bar := strings.Repeat("█", min(max(1, int(wait*10)), 30)) // a busy machine may take longer
			fmt.Fprintf(out, "  %-7s%s, %2d jobs  %s %.1f s\n", name, t.name, t.jobs, bar, wait)
			name = ""
		}
	}
	return nil
}

// serve runs the jobs in one way, and returns each tenant's longest wait.
func serve(ctx context.Context, limiter func(*outbound.Bucket) outbound.Limiter) (map[string]time.Duration, error) {
	limiters := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		b, err := outbound.NewBucket(tenant, outbound.PerSecond(perSecond))
		if err != nil {
			return nil, err
		}
		return limiter(b), nil
	}}
	system := &jobsystem.System{Workers: workers, Do: func(ctx context.Context, j *jobsystem.Job) error {
		return outbound.Do(ctx, limiters.For(j.Tenant), outbound.Cost{1}, jobsystem.API)
	}}
	come := map[*jobsystem.Job]time.Time{}
	for i, t := range tenants {
		for n := range t.jobs {
			j := &jobsystem.Job{Tenant: t.name, At: time.Now()}
			if i > 0 {
				j.At = j.At.Add(time.Second * time.Duration(n) / time.Duration(t.jobs))
			}
			come[j] = j.At
			system.Jobs = append(system.Jobs, j)
		}
	}
	err := system.Run(ctx)
	longest := map[string]time.Duration{}
	for j, at := range come {
		longest[j.Tenant] = max(longest[j.Tenant], j.Done.Sub(at))
	}
	return longest, err
}
