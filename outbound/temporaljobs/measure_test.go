package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// mode is a way to pace activities.
type mode struct {
	name    string
	slots   int
	limiter func(*outbound.Bucket) outbound.Limiter // nil: Temporal's own
	tickets Tickets
	await   bool
}

// modes are those, and Temporal's own.
var modes = []mode{
	{name: "Temporal's TaskQueueActivitiesPerSecond", slots: 200},
	{name: "wait in the worker", slots: 50, limiter: func(b *outbound.Bucket) outbound.Limiter { return queue.New(b, queue.Config{}) }},
	{name: "a queue of 1 s", slots: 200, limiter: func(b *outbound.Bucket) outbound.Limiter {
		return recipe{queue.New(b, queue.Config{MaxWait: time.Second})}
	}},
	{name: "Scheduler, tickets in a map", slots: 200, tickets: &kept{}, limiter: newScheduler},
	{name: "Scheduler, Await", slots: 200, await: true, limiter: newScheduler},
}

func newScheduler(b *outbound.Bucket) outbound.Limiter {
	return jobs.New(b, jobs.Config{})
}

// recipe sends jobs back until a second before they would go.
type recipe struct{ queue *queue.Queue }

func (r recipe) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := r.queue.Acquire(ctx, c)
	if later, ok := jobs.AsLater(err); ok {
		later.In = max(0, later.In-time.Second)
		err = later
	}
	return p, err
}

// TestMeasure tells what activities cost, ten in each workflow. Where the server or the machine is slower
// than the rate, nobody waits, and the numbers tell nothing: hence two rates.
func TestMeasure(t *testing.T) {
	if os.Getenv("DRIPFEED_LONG") == "" {
		t.Skip("DRIPFEED_LONG is not set")
	}
	address := serverAddress(t)
	for _, rate := range []float64{20, 5} {
		for _, m := range modes {
			t.Run(fmt.Sprint(rate, " a second, ", m.name), func(t *testing.T) { t.Log(m.measure(t, address, int(rate)*2, rate)) })
		}
	}
}

const each = 10 // activities of a workflow

// watched is a Limiter, and how many wait for it.
type watched struct {
	outbound.Limiter
	*paces
}

func (w watched) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	w.mu.Lock()
	w.waiting++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.waiting--
		w.mu.Unlock()
	}()
	return w.Limiter.Acquire(ctx, c)
}

func (w watched) Book(ctx context.Context, costs ...outbound.Cost) ([]jobs.Run, error) {
	if l, ok := w.Limiter.(*jobs.Scheduler); ok {
		return l.Book(ctx, costs...)
	}
	return nil, errors.New("no Scheduler")
}

// measure runs the workflows once.
func (m mode) measure(t *testing.T, address string, flows int, rate float64) string {
	var log logs
	c, err := client.Dial(client.Options{HostPort: address, Logger: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
	var mu sync.Mutex
	attempts, most, calls := 0, int32(0), 0
	var first, last time.Time
	count := &counts{attempt: func(info activity.Info) {
		mu.Lock()
		defer mu.Unlock()
		attempts++
		most = max(most, info.Attempt)
	}}
	call := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com", nil)
		if err != nil {
			return err
		}
		resp, err := api.RoundTrip(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		mu.Lock()
		calls++
		last = time.Now()
		if first.IsZero() {
			first = last
		}
		mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		return nil
	}
	w := watched{paces: new(paces)}
	options := worker.Options{MaxConcurrentActivityExecutionSize: m.slots, MaxConcurrentActivityTaskPollers: 5, Interceptors: []interceptor.WorkerInterceptor{count}}
	if m.limiter == nil {
		options.TaskQueueActivitiesPerSecond = rate
	} else {
		w.Limiter = m.limiter(outbound.Must(outbound.NewBucket("api", outbound.PerSecond(rate))))
		options.Interceptors = append(options.Interceptors, NewInterceptor(func(i activity.Info) (outbound.Limiter, outbound.Cost) {
			if i.ActivityType.Name != "Call" {
				return nil, outbound.Cost{}
			}
			return w, outbound.Cost{1}
		}, m.tickets))
	}
	name := fmt.Sprintf("temporaljobs-%d", rand.Uint64())
	work := worker.New(c, name, options)
	work.RegisterActivityWithOptions(call, activity.RegisterOptions{Name: "Call"})
	work.RegisterWorkflowWithOptions(order{Activity: "Call", Activities: each, SideBySide: true, Await: m.await, Cost: outbound.Cost{1}, Start: 30 * time.Second, Interval: time.Second}.workflow, workflow.RegisterOptions{Name: "Order"})
	if err := work.Start(); err != nil {
		t.Fatal(err)
	}
	defer work.Stop()
	ended := make(chan struct{})
	samples, waiting := 0, 0
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(100 * time.Millisecond):
				w.mu.Lock()
				samples, waiting = samples+1, waiting+w.waiting
				w.mu.Unlock()
			}
		}
	}()
	runs := make([]client.WorkflowRun, flows)
	for i := range runs {
		if runs[i], err = c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: fmt.Sprint(name, "-", i), TaskQueue: name}, "Order"); err != nil {
			t.Fatal(err)
		}
	}
	events := 0
	for _, r := range runs {
		if err := r.Get(t.Context(), nil); err != nil {
			t.Error(err)
		}
		for h := c.GetWorkflowHistory(t.Context(), r.GetID(), "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); h.HasNext(); events++ {
			if _, err := h.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(ended)
	r := api.Report()
	return fmt.Sprintf("%.2f attempts an activity (most %d), makespan %.2f of ideal, %.0f of %d slots wait, %.1f events for 10 activities, %d log lines, API refused %d of %d",
		float64(attempts)/float64(flows*each), most, last.Sub(first).Seconds()/(float64(flows*each-1)/rate), float64(waiting)/float64(max(samples, 1)), m.slots,
		float64(events)/float64(flows), len(strings.Fields(log.text())), r.Refused, calls)
}

// counts tells of each attempt.
type counts struct {
	interceptor.WorkerInterceptorBase
	attempt func(activity.Info)
}

func (c *counts) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &countsIn{interceptor.ActivityInboundInterceptorBase{Next: next}, c}
}

type countsIn struct {
	interceptor.ActivityInboundInterceptorBase
	*counts
}

func (c *countsIn) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	if info := activity.GetInfo(ctx); info.ActivityType.Name == "Call" {
		c.attempt(info)
	}
	return c.Next.ExecuteActivity(ctx, in)
}
