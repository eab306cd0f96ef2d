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
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// order is what the workflow does: it executes activities of the name "Call".
type order struct {
	Activities              int // side by side; if 0, one
	Await                   bool
	Cost                    outbound.Cost // of Await; if zero, 1
	Attempts                int32         // MaximumAttempts
	Interval                time.Duration // of the RetryPolicy; if 0, an hour, which no test waits for
	Heartbeat, Start, InAll time.Duration // timeouts
	Local                   bool
	Other                   bool // an activity of the name "Other" comes first, with the same ctx
}

func (o order) policy() *temporal.RetryPolicy {
	return &temporal.RetryPolicy{InitialInterval: cmp.Or(o.Interval, time.Hour), BackoffCoefficient: 1, MaximumAttempts: o.Attempts}
}

func (o order) workflow(ctx workflow.Context) (took time.Duration, err error) {
	o.Start = cmp.Or(o.Start, time.Minute)
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: o.Start,
		ScheduleToCloseTimeout: o.InAll, HeartbeatTimeout: o.Heartbeat, RetryPolicy: o.policy(), WaitForCancellation: true})
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: o.Start, RetryPolicy: o.policy()})
	one := func(ctx workflow.Context) (err error) {
		if o.Await {
			if ctx, err = Await(ctx, "Call", cmp.Or(o.Cost, outbound.Cost{1})); err != nil {
				return err
			}
		}
		if o.Other {
			if err := workflow.ExecuteActivity(ctx, "Other").Get(ctx, nil); err != nil {
				return err
			}
		}
		if o.Local {
			return workflow.ExecuteLocalActivity(ctx, "Call").Get(ctx, nil)
		}
		return workflow.ExecuteActivity(ctx, "Call").Get(ctx, nil)
	}
	begin := workflow.Now(ctx)
	all := workflow.NewWaitGroup(ctx)
	for range max(o.Activities, 1) {
		all.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer all.Done()
			if failed := one(ctx); failed != nil {
				err = failed
			}
		})
	}
	all.Wait(ctx)
	return workflow.Now(ctx).Sub(begin), err
}

// world is what a workflow runs in: a worker, and a limiter that admits each activity of the name
// "Call" unless the test says otherwise.
type world struct {
	t      *testing.T
	server string // the address of a Temporal server; if empty, the SDK's testsuite

	answer    func(ctx context.Context, n int) error // of the n-th Acquire, from 1
	inner     outbound.Limiter                       // if not nil, it answers, and books
	book      func() (jobs.Run, error)               // if nil, a reservation "a" that has come
	limiter   func(activity.Info) (outbound.Limiter, outbound.Cost)
	tickets   Tickets
	call      func(ctx context.Context, n int) error // the n-th run of the activity
	converter converter.DataConverter                // of the testsuite; nil: the SDK's
	stop      chan struct{}                          // closed by the test: the worker stops
	cancel    chan struct{}                          // closed by the test: the workflow is cancelled
	bubble    bool                                   // the time of synctest passes in the testsuite, as well

	log logs

	mu       sync.Mutex
	arrivals string // of each Acquire: its attempt, ticket and, if it is not 1, cost
	acquired int
	most     int32 // attempts of one activity
	waiting  int   // attempts that wait in a worker
	booked   []outbound.Cost
	settled  outbound.Cost
	done     int // permits that were ended
	runs     int // of the activity
}

// limits returns the world as the limiter of activities of the name "Call" alone.
func (w *world) limits(i activity.Info) (outbound.Limiter, outbound.Cost) {
	if i.ActivityType.Name != "Call" {
		return nil, outbound.Cost{}
	}
	return outbound.Observe(w, "calls", func(context.Context, outbound.Event) {}), outbound.Cost{1}
}

func (w *world) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	w.mu.Lock()
	w.acquired++
	w.waiting++
	n, attempt := w.acquired, activity.GetInfo(ctx).Attempt
	w.most = max(w.most, attempt)
	w.arrivals += fmt.Sprintf(" %d%s", attempt, ticketIn(ctx))
	if c != (outbound.Cost{1}) {
		w.arrivals += fmt.Sprint(c)
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.waiting--
		w.mu.Unlock()
	}()
	if w.inner != nil {
		return w.inner.Acquire(ctx, c)
	}
	if err := w.answer(ctx, n); err != nil {
		return outbound.Permit{}, err
	}
	return outbound.NewPermit(permit{w}), nil
}

// ticketIn returns the ticket of a ctx of jobs.WithTicket. Only package jobs can read it, but a ctx prints it.
func ticketIn(ctx context.Context) string {
	_, ticket, ok := strings.Cut(fmt.Sprint(ctx), ".WithValue(jobs.ticketKey, ")
	if !ok {
		return "none"
	}
	ticket, _, _ = strings.Cut(ticket, ")")
	return ticket
}

func (w *world) Book(ctx context.Context, costs ...outbound.Cost) ([]jobs.Run, error) {
	if b, ok := jobs.Of(w.inner); ok {
		return b.Book(ctx, costs...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.booked = append(w.booked, costs...)
	if w.book == nil {
		return []jobs.Run{{At: time.Now(), Ticket: "a"}}, nil
	}
	run, err := w.book()
	return []jobs.Run{run}, err
}

// permit is the call of a permit.
type permit struct{ *world }

func (p permit) Settle(used outbound.Cost) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = used
}

func (p permit) Answered(outbound.Answer) {}

func (p permit) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
}

// inBoth runs a test in the SDK's testsuite, and on a server if there is one.
func inBoth(t *testing.T, name string, f func(t *testing.T, w *world)) {
	t.Run(name+", testsuite", inSuite(f))
	t.Run(name+", server", func(t *testing.T) { onServer(t, f) })
}

// inSuite returns a test that runs in a bubble of synctest: the SDK panics where a workflow takes a second.
func inSuite(f func(t *testing.T, w *world)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, newWorld(t, "")) }) }
}

// onServer runs a test on the server that the environment names.
func onServer(t *testing.T, f func(t *testing.T, w *world)) {
	w := newWorld(t, serverAddress(t))
	t.Parallel()
	f(t, w)
}

// serverAddress returns the address of the server to test with.
func serverAddress(t *testing.T) string {
	address := os.Getenv("DRIPFEED_TEMPORAL_ADDRESS")
	if address == "" {
		t.Skip("DRIPFEED_TEMPORAL_ADDRESS names no Temporal server")
	}
	return address
}

func newWorld(t *testing.T, server string) *world {
	w := &world{t: t, server: server, answer: jobtest.InTurn(), call: jobtest.InTurn()}
	w.limiter = w.limits
	return w
}

// run runs the workflow, and returns how long it takes by its own clock.
func (w *world) run(o order) (took time.Duration, err error) {
	if w.server != "" {
		return w.runOnServer(o)
	}
	return w.runInSuite(o)
}

// options returns those of a worker. Without a limiter it has no interceptor of this package.
func (w *world) options(all ...interceptor.WorkerInterceptor) worker.Options {
	if w.limiter != nil {
		all = append(all, NewInterceptor(w.limiter, w.tickets))
	}
	return worker.Options{Interceptors: all, WorkerStopTimeout: 10 * time.Second}
}

// activity is the activity of the name "Call".
func (w *world) activity(ctx context.Context) error {
	w.mu.Lock()
	w.runs++
	n := w.runs
	w.mu.Unlock()
	return w.call(ctx, n)
}

// other is an activity. The SDK finds activities by the names of their functions, which function literals share.
func other(context.Context) error { return nil }

// register registers the workflow and its activities.
func (w *world) register(r worker.Registry, o order) {
	r.RegisterActivityWithOptions(w.activity, activity.RegisterOptions{Name: "Call"})
	r.RegisterActivityWithOptions(other, activity.RegisterOptions{Name: "Other"})
	r.RegisterWorkflowWithOptions(o.workflow, workflow.RegisterOptions{Name: "Order"})
}

// runInSuite runs the workflow by the clock of the SDK's testsuite, which passes whenever no activity runs.
func (w *world) runInSuite(o order) (took time.Duration, err error) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(&w.log)
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(w.options(&likeServer{policy: o.policy(), bubble: w.bubble}))
	env.SetTestTimeout(24 * time.Hour)
	if w.converter != nil {
		env.SetDataConverter(w.converter)
	}
	if w.stop != nil {
		env.SetWorkerStopChannel(w.stop)
	}
	w.register(env, o)
	env.ExecuteWorkflow("Order")
	if err := env.GetWorkflowError(); err != nil {
		return 0, err
	}
	err = env.GetWorkflowResult(&took)
	return took, err
}

// dial connects to the server.
func (w *world) dial() (client.Client, error) {
	return client.Dial(client.Options{HostPort: w.server, Logger: &w.log})
}

// start starts a worker.
func (w *world) start(c client.Client, queue string, o order, options worker.Options) (worker.Worker, error) {
	work := worker.New(c, queue, options)
	w.register(work, o)
	return work, work.Start()
}

// runOnServer runs the workflow on a server. When w.stop is closed, its worker stops and another begins.
func (w *world) runOnServer(o order) (took time.Duration, err error) {
	c := jobtest.Must(w.dial())
	defer c.Close()
	queue := queueName()
	work := jobtest.Must(w.start(c, queue, o, w.options()))
	defer func() { work.Stop() }()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	run := jobtest.Must(c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: queue, TaskQueue: queue, WorkflowExecutionTimeout: time.Minute}, "Order"))
	if w.stop != nil {
		<-w.stop
		work.Stop()
		work = jobtest.Must(w.start(c, queue, o, w.options()))
	}
	if w.cancel != nil {
		<-w.cancel
		if err := c.CancelWorkflow(ctx, queue, ""); err != nil {
			return 0, err
		}
	}
	err = run.Get(ctx, &took)
	return took, err
}

// queueName returns the name of a task queue that no other test has.
func queueName() string { return fmt.Sprintf("temporaljobs-%d", rand.Uint64()) }

// likeServer does in the testsuite what a server does, and the testsuite does not.
type likeServer struct {
	interceptor.WorkerInterceptorBase
	policy *temporal.RetryPolicy
	bubble bool
}

func (s *likeServer) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &activityLikeServer{likeServer: s}
	i.ActivityInboundInterceptorBase.Next = next
	return i
}

func (s *likeServer) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	i := &workflowLikeServer{likeServer: s}
	i.WorkflowInboundInterceptorBase.Next = next
	return i
}

type activityLikeServer struct {
	interceptor.ActivityInboundInterceptorBase
	interceptor.ActivityOutboundInterceptorBase
	*likeServer
}

func (i *activityLikeServer) Init(next interceptor.ActivityOutboundInterceptor) error {
	i.ActivityOutboundInterceptorBase.Next = next
	return i.ActivityInboundInterceptorBase.Next.Init(i)
}

// ExecuteActivity lets the delay before the next attempt pass, where that takes time.
func (i *activityLikeServer) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	result, err := i.ActivityInboundInterceptorBase.Next.ExecuteActivity(ctx, in)
	var failure *temporal.ApplicationError
	if i.bubble && errors.As(err, &failure) {
		time.Sleep(failure.NextRetryDelay())
		return result, temporal.NewApplicationErrorWithOptions("later", TypeLater, temporal.ApplicationErrorOptions{NextRetryDelay: time.Nanosecond, Category: failure.Category()})
	}
	return result, err
}

// GetInfo adds the RetryPolicy of the activity.
func (i *activityLikeServer) GetInfo(ctx context.Context) activity.Info {
	info := i.ActivityOutboundInterceptorBase.Next.GetInfo(ctx)
	info.RetryPolicy = cmp.Or(info.RetryPolicy, i.policy)
	return info
}

type workflowLikeServer struct {
	interceptor.WorkflowInboundInterceptorBase
	interceptor.WorkflowOutboundInterceptorBase
	*likeServer
}

func (i *workflowLikeServer) Init(next interceptor.WorkflowOutboundInterceptor) error {
	i.WorkflowOutboundInterceptorBase.Next = next
	return i.WorkflowInboundInterceptorBase.Next.Init(i)
}

// Sleep lets the time of a timer pass, where that takes time.
func (i *workflowLikeServer) Sleep(ctx workflow.Context, d time.Duration) error {
	if !i.bubble {
		return i.WorkflowOutboundInterceptorBase.Next.Sleep(ctx, d)
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
	bad string
}

func (l *logs) Debug(string, ...any)             {}
func (l *logs) Info(string, ...any)              {}
func (l *logs) Warn(msg string, keyvals ...any)  { l.add("WARN", msg, keyvals) }
func (l *logs) Error(msg string, keyvals ...any) { l.add("ERROR", msg, keyvals) }

func (l *logs) add(level, msg string, keyvals []any) {
	if msg == "Failed to poll for task." { // the SDK logs that of a worker that stops
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad += level + " " + msg + " " + fmt.Sprint(keyvals...) + "\n"
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bad
}

// typeOf returns the type of the ApplicationError in err, "none" of another error, and "" of nil.
func typeOf(err error) string {
	var failure *temporal.ApplicationError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failure):
		return failure.Type()
	}
	return "none"
}
