package temporaljobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
)

// order is what the workflow of most tests does.
type order struct {
	Activity                 string // its name
	Activities               int    // how many, one after the other; 0: one
	Await                    bool
	Cost                     outbound.Cost // of Await
	WaitForCancel            bool          // the workflow ends when the activity has heard that it is cancelled
	Attempts                 int32
	Interval                 time.Duration // of the RetryPolicy; 0: an hour, which no test waits for
	Heartbeat, Start, InAll  time.Duration // timeouts
	Local, SideBySide, Other bool          // Other: an activity of the name "Other" comes first, with the same ctx
}

func (o order) workflow(ctx workflow.Context) (took time.Duration, err error) {
	if o.Start == 0 {
		o.Start = time.Minute
	}
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	retry := &temporal.RetryPolicy{InitialInterval: o.Interval, BackoffCoefficient: 1, MaximumAttempts: o.Attempts}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: o.Start,
		ScheduleToCloseTimeout: o.InAll, HeartbeatTimeout: o.Heartbeat, RetryPolicy: retry, WaitForCancellation: o.WaitForCancel})
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: o.Start, RetryPolicy: retry})
	begin := workflow.Now(ctx)
	one := func(ctx workflow.Context) (err error) {
		if o.Await {
			if ctx, err = Await(ctx, o.Activity, o.Cost); err != nil {
				return err
			}
		}
		if o.Other {
			if err := workflow.ExecuteActivity(ctx, "Other").Get(ctx, nil); err != nil {
				return err
			}
		}
		if o.Local {
			return workflow.ExecuteLocalActivity(ctx, o.Activity).Get(ctx, nil)
		}
		return workflow.ExecuteActivity(ctx, o.Activity).Get(ctx, nil)
	}
	all := workflow.NewWaitGroup(ctx)
	for range max(o.Activities, 1) {
		all.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer all.Done()
			if wrong := one(ctx); wrong != nil {
				err = wrong
			}
		})
		if !o.SideBySide {
			all.Wait(ctx)
		}
	}
	all.Wait(ctx)
	return workflow.Now(ctx).Sub(begin), err
}

// world is what a workflow runs in.
type world struct {
	limiter    func(activity.Info) (outbound.Limiter, outbound.Cost) // nil: no interceptor
	tickets    Tickets
	activities map[string]any
	log        logs
	stop       chan struct{} // closed by the test: the worker stops
	cancel     chan struct{} // closed by the test: the workflow is cancelled
	bubble     bool          // the time of synctest passes in the testsuite, as well
	extra      []interceptor.WorkerInterceptor
	converter  converter.DataConverter // of the testsuite; nil: the SDK's
}

func (w *world) interceptors() []interceptor.WorkerInterceptor {
	if w.limiter == nil {
		return w.extra
	}
	return append(w.extra, NewInterceptor(w.limiter, w.tickets))
}

// inBoth runs a test in the SDK's testsuite, and on a server if there is one.
func inBoth(t *testing.T, f func(t *testing.T, run func(*world, order) (time.Duration, error))) {
	t.Run("testsuite", inBubble(func(t *testing.T) {
		f(t, func(w *world, o order) (time.Duration, error) { return w.runInSuite(o) })
	}))
	t.Run("server", func(t *testing.T) {
		address := serverAddress(t)
		t.Parallel()
		f(t, func(w *world, o order) (time.Duration, error) { return w.runOn(t, address, o) })
	})
}

// inBubble returns a test that runs in a bubble of synctest: the SDK panics where a workflow takes a second.
func inBubble(f func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// runInSuite runs a workflow by the clock of the SDK's testsuite, which passes whenever no activity runs.
func (w *world) runInSuite(o order) (took time.Duration, err error) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(&w.log)
	env := suite.NewTestWorkflowEnvironment()
	// The testsuite tells activities no RetryPolicy, unlike a server.
	retry := &temporal.RetryPolicy{InitialInterval: cmp.Or(o.Interval, time.Hour), BackoffCoefficient: 1, MaximumAttempts: o.Attempts}
	w.extra = append(w.extra, &stand{policy: retry, bubble: w.bubble})
	env.SetWorkerOptions(worker.Options{Interceptors: w.interceptors()})
	env.SetTestTimeout(24 * time.Hour)
	if w.converter != nil {
		env.SetDataConverter(w.converter)
	}
	if w.stop != nil {
		env.SetWorkerStopChannel(w.stop)
	}
	if w.cancel != nil {
		env.RegisterDelayedCallback(env.CancelWorkflow, time.Minute) // by the testsuite's clock, which runs ahead
	}
	for name, f := range w.activities {
		env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	env.RegisterWorkflowWithOptions(o.workflow, workflow.RegisterOptions{Name: "Order"})
	env.ExecuteWorkflow("Order")
	if err := env.GetWorkflowError(); err != nil {
		return 0, err
	}
	err = env.GetWorkflowResult(&took)
	return took, err
}

// runOn runs a workflow on a server. When w.stop is closed, its worker stops and another begins.
func (w *world) runOn(t *testing.T, address string, o order) (took time.Duration, err error) {
	c, err := client.Dial(client.Options{HostPort: address, Logger: &w.log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	queue := fmt.Sprintf("temporaljobs-%d", rand.Uint64())
	begin := func() worker.Worker {
		work := worker.New(c, queue, worker.Options{Interceptors: w.interceptors(), WorkerStopTimeout: 10 * time.Second})
		for name, f := range w.activities {
			work.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
		}
		work.RegisterWorkflowWithOptions(o.workflow, workflow.RegisterOptions{Name: "Order"})
		if err := work.Start(); err != nil {
			t.Fatal(err)
		}
		return work
	}
	work := begin()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: queue, TaskQueue: queue, WorkflowExecutionTimeout: time.Minute}, "Order")
	if err != nil {
		t.Fatal(err)
	}
	if w.stop != nil {
		<-w.stop
		work.Stop()
		work = begin()
	}
	defer work.Stop()
	if w.cancel != nil {
		<-w.cancel
		if err := c.CancelWorkflow(ctx, queue, ""); err != nil {
			t.Fatal(err)
		}
	}
	err = run.Get(ctx, &took)
	return took, err
}

// serverAddress returns the address of the server to test with.
func serverAddress(t *testing.T) string {
	address := os.Getenv("DRIPFEED_TEMPORAL_ADDRESS")
	if address == "" {
		t.Skip("DRIPFEED_TEMPORAL_ADDRESS names no Temporal server")
	}
	return address
}

// stand does in the testsuite what a server does, and the testsuite does not.
type stand struct {
	interceptor.WorkerInterceptorBase
	policy *temporal.RetryPolicy
	bubble bool
}

func (s *stand) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &standIn{interceptor.ActivityInboundInterceptorBase{Next: next}, s}
}

func (s *stand) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &standWorkflow{interceptor.WorkflowInboundInterceptorBase{Next: next}, s}
}

type standIn struct {
	interceptor.ActivityInboundInterceptorBase
	*stand
}

func (s *standIn) Init(next interceptor.ActivityOutboundInterceptor) error {
	return s.Next.Init(&standOut{interceptor.ActivityOutboundInterceptorBase{Next: next}, s.stand})
}

// ExecuteActivity lets the delay before the next attempt pass, where that takes time.
func (s *standIn) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	result, err := s.Next.ExecuteActivity(ctx, in)
	var failure *temporal.ApplicationError
	if s.bubble && errors.As(err, &failure) {
		time.Sleep(failure.NextRetryDelay())
		return result, fails(time.Nanosecond, failure.Category())
	}
	return result, err
}

type standOut struct {
	interceptor.ActivityOutboundInterceptorBase
	*stand
}

// GetInfo tells activities the RetryPolicy that they have.
func (s *standOut) GetInfo(ctx context.Context) activity.Info {
	info := s.Next.GetInfo(ctx)
	if info.RetryPolicy == nil {
		info.RetryPolicy = s.policy
	}
	return info
}

type standWorkflow struct {
	interceptor.WorkflowInboundInterceptorBase
	*stand
}

func (s *standWorkflow) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return s.Next.Init(&standTimer{interceptor.WorkflowOutboundInterceptorBase{Next: next}, s.stand})
}

type standTimer struct {
	interceptor.WorkflowOutboundInterceptorBase
	*stand
}

// Sleep lets the time of a timer pass, where that takes time.
func (s *standTimer) Sleep(ctx workflow.Context, d time.Duration) error {
	if !s.bubble {
		return s.Next.Sleep(ctx, d)
	}
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: d + time.Hour})
	return workflow.ExecuteLocalActivity(ctx, func(context.Context) error {
		time.Sleep(d)
		return nil
	}).Get(ctx, nil)
}

// logs keeps the lines at the levels warning and error.
type logs struct {
	mu  sync.Mutex
	bad []string
}

func (l *logs) Debug(string, ...any)             {}
func (l *logs) Info(string, ...any)              {}
func (l *logs) Warn(msg string, keyvals ...any)  { l.add("WARN", msg, keyvals) }
func (l *logs) Error(msg string, keyvals ...any) { l.add("ERROR", msg, keyvals) }

func (l *logs) add(level, msg string, keyvals []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = append(l.bad, level+" "+msg+" "+fmt.Sprint(keyvals...))
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.bad, "\n")
}
