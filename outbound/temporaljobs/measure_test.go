package temporaljobs

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// TestMeasure logs what activities cost, ten in each workflow. If the server or the machine is slower than the rate,
// no activity waits, and the numbers mean nothing.
func TestMeasure(t *testing.T) {
	scheduler := func(b *outbound.Bucket) outbound.Limiter { return jobs.New(b, jobs.Config{}) }
	jobtest.Measure(t, 5, "attempts each | most | slots that wait | makespan / ideal | events for 10 | strict API refused | log lines", []jobtest.Way{
		{Name: "Temporal's `TaskQueueActivitiesPerSecond`", Measure: way{slots: 200}.measure},
		{Name: "a queue: they wait in the worker", Measure: way{slots: 50, limiter: func(b *outbound.Bucket) outbound.Limiter {
			return queue.New(b, queue.Config{})
		}}.measure},
		{Name: "a queue of 1 s, and rescheduled", Measure: way{slots: 200, limiter: func(b *outbound.Bucket) outbound.Limiter {
			return recipe{queue.New(b, queue.Config{MaxWait: time.Second})}
		}}.measure},
		{Name: "a Scheduler, with `Tickets`", Measure: way{slots: 200, tickets: &jobtest.Tickets{}, limiter: scheduler}.measure},
		{Name: "a Scheduler, with `Await`", Measure: way{slots: 200, await: true, limiter: scheduler}.measure},
	})
}

// way is a way to pace activities.
type way struct {
	slots   int
	limiter func(*outbound.Bucket) outbound.Limiter // nil: Temporal's own
	tickets Tickets
	await   bool
}

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

// measure runs the workflows once.
func (m way) measure(t *testing.T) []float64 {
	const rate, flows, each = 20., 40, 10
	w := newWorld(t, serverAddress(t))
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
	w.inner, w.tickets = outbound.Unlimited{}, m.tickets
	if m.limiter != nil {
		w.inner = m.limiter(outbound.Must(outbound.NewBucket("api", outbound.PerSecond(rate))))
	}
	var mu sync.Mutex
	var first, last time.Time
	w.call = func(ctx context.Context, _ int) error {
		_ = jobtest.Get(ctx, &http.Client{Transport: api}, "http://api.example.com") // a refused call is counted alone
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
	c := jobtest.Must(w.dial())
	defer c.Close()
	name := queueName()
	work := jobtest.Must(w.start(c, name, order{Activities: each, Await: m.await, Start: 30 * time.Second, Interval: time.Second}, options))
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
		runs[i] = jobtest.Must(c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: fmt.Sprint(name, "-", i), TaskQueue: name}, "Order"))
	}
	events := int64(0)
	for _, r := range runs {
		if err := r.Get(t.Context(), nil); err != nil {
			t.Error(err)
		}
		d := jobtest.Must(c.DescribeWorkflowExecution(t.Context(), r.GetID(), ""))
		events += d.GetWorkflowExecutionInfo().GetHistoryLength()
	}
	close(ended)
	w.mu.Lock()
	defer w.mu.Unlock()
	return []float64{float64(w.acquired) / (flows * each), float64(w.most), float64(waiting) / float64(max(samples, 1)), last.Sub(first).Seconds() / ((flows*each - 1) / rate),
		float64(events) / flows, float64(api.Report().Refused), float64(strings.Count(w.log.text(), "\n"))}
}
