package temporaljobs_test

import (
	"context"
	"log"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/temporaljobs"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Charge is the activity: it calls the API.
func Charge(ctx context.Context, order string) error { return nil }

// Order is the workflow.
func Order(ctx workflow.Context, order string) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	ctx, err := temporaljobs.Await(ctx, "Charge", outbound.Cost{1})
	if err != nil {
		return err
	}
	return workflow.ExecuteActivity(ctx, "Charge", order).Get(ctx, nil)
}

func Example() {
	c, err := client.Dial(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	calls := jobs.New(outbound.Must(outbound.NewBucket("shop", outbound.PerSecond(10))), jobs.Config{})
	limiter := func(i activity.Info) (outbound.Limiter, outbound.Cost) {
		if i.ActivityType.Name != "Charge" {
			return nil, outbound.Cost{} // not paced
		}
		return calls, outbound.Cost{1}
	}
	w := worker.New(c, "orders", worker.Options{
		Interceptors:      []interceptor.WorkerInterceptor{temporaljobs.NewInterceptor(limiter, nil)},
		WorkerStopTimeout: 10 * time.Second,
	})
	w.RegisterWorkflow(Order)
	w.RegisterActivity(Charge)
	log.Print(w.Run(worker.InterruptCh()))
}

// Tenants have a Scheduler each, and a workflow books in that of its own tenant. Here a tenant is a
// workflow's task queue.
func ExampleNewInterceptor_tenants() {
	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
		b, err := outbound.NewBucket("shop:"+tenant, outbound.PerSecond(1))
		return jobs.New(b, jobs.Config{}), err
	}}
	limiter := func(i activity.Info) (outbound.Limiter, outbound.Cost) {
		return tenants.For(i.TaskQueue), outbound.Cost{1}
	}
	_ = temporaljobs.NewInterceptor(limiter, nil)
}

// README.md shows the program of the example.
func TestReadme_ShowsTheExample(t *testing.T) { jobtest.Readme(t) }
