package temporaljobs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

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

var modes = []mode{
	{name: "Temporal's TaskQueueActivitiesPerSecond", slots: 200},
	{name: "wait in the worker", slots: 50, limiter: func(b *outbound.Bucket) outbound.Limiter { return queue.New(b, queue.Config{}) }},
	{name: "a queue of 1 s", slots: 200, limiter: func(b *outbound.Bucket) outbound.Limiter {
		return recipe{queue.New(b, queue.Config{MaxWait: time.Second})}
	}},
	{name: "Scheduler, tickets in a map", slots: 200, tickets: &kept{}, limiter: newScheduler},
	{name: "Scheduler, Await", slots: 200, await: true, limiter: newScheduler},
}

func newScheduler(b *outbound.Bucket) outbound.Limiter { return jobs.New(b, jobs.Config{}) }

// recipe reschedules jobs until a second before they would leave.
type recipe struct{ outbound.Limiter }

func (r recipe) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := r.Limiter.Acquire(ctx, c)
	if later, ok := jobs.AsLater(err); ok {
		later.In = max(0, later.In-time.Second)
		err = later
	}
	return p, err
}

// TestMeasure logs what activities cost, ten in each workflow, at two rates: if the server or the machine is slower
// than the rate, no activity waits, and the numbers mean nothing.
func TestMeasure(t *testing.T) {
	if os.Getenv("DRIPFEED_LONG") == "" {
		t.Skip("DRIPFEED_LONG is not set")
	}
	for _, rate := range []float64{20, 5} {
		for _, m := range modes {
			t.Run(fmt.Sprint(rate, " a second, ", m.name), func(t *testing.T) { m.measure(t, newWorld(t, serverAddress(t)), int(rate)*2, rate) })
		}
	}
}

const each = 10 // activities of a workflow

// measure runs the workflows once.
func (m mode) measure(t *testing.T, w *world, flows int, rate float64) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
	http := &http.Client{Transport: api}
	count := &counted{Limiter: outbound.Unlimited{}}
	w.limiter, w.tickets = count.limits, m.tickets
	if m.limiter != nil {
		count.Limiter = m.limiter(outbound.Must(outbound.NewBucket("api", outbound.PerSecond(rate))))
	}
	var mu sync.Mutex
	var first, last time.Time
	w.call = func(context.Context, int) error {
		resp, err := http.Get("http://api.example.com")
		if err != nil {
			return err
		}
		resp.Body.Close()
		mu.Lock()
		last = time.Now()
		if first.IsZero() {
			first = last
		}
		mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		return nil
	}
	options := w.options()
	options.MaxConcurrentActivityExecutionSize, options.MaxConcurrentActivityTaskPollers = m.slots, 5
	if m.limiter == nil {
		options.TaskQueueActivitiesPerSecond = rate
	}
	c, err := w.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := queueName()
	work, err := w.start(c, name, order{Activities: each, SideBySide: true, Await: m.await, Start: 30 * time.Second, Interval: time.Second}, options)
	if err != nil {
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
				count.mu.Lock()
				samples, waiting = samples+1, waiting+count.waiting
				count.mu.Unlock()
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
	work.Stop()
	t.Logf("%.2f attempts an activity (most %d), makespan %.2f of ideal, %.0f of %d slots wait, %.1f events for 10 activities, %d log lines, API refused %d of %d",
		float64(count.attempts)/float64(flows*each), count.most, last.Sub(first).Seconds()/(float64(flows*each-1)/rate), float64(waiting)/float64(max(samples, 1)), m.slots,
		float64(events)/float64(flows), strings.Count(w.log.text(), "\n"), api.Report().Refused, w.runs)
}
