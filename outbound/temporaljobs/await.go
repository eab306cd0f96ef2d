package temporaljobs

import (
	"context"
	"errors"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Await books a reservation for one activity, sleeps until the reservation is near, and returns a
// ctx to execute the activity with:
//
//	paced, err := temporaljobs.Await(ctx, "Call", outbound.Cost{1})
//	if err != nil {
//		return err
//	}
//	err = workflow.ExecuteActivity(paced, "Call", order).Get(paced, nil)
//
// name is the name of the activity's type, and cost is what the activity then costs, whatever the
// limiter of [NewInterceptor] says. Await calls that limiter with the Info of the workflow and the
// name. It should return a limiter that contains a Scheduler: see [jobs.Of]. Without a Scheduler,
// or while the store is unavailable, Await returns immediately, and the activity books when it
// runs. The error is of TypeCost for a cost above a limit's capacity. Other errors: the workflow
// was cancelled, or its worker lacks the interceptor.
//
// Each activity needs its own Await. Await blocks its coroutine, so several activities side by side
// have one each, by [workflow.Go].
//
// Await adds a marker and a timer to the history. In workflows that run already call it behind
// [workflow.GetVersion].
func Await(ctx workflow.Context, name string, cost outbound.Cost) (workflow.Context, error) {
	once := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: bookingTimeout,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
	})
	var r reservation
	err := workflow.ExecuteLocalActivity(once, bookReservation, booking{Name: name, Cost: cost}).Get(ctx, &r)
	var final *temporal.ApplicationError
	if temporal.IsCanceledError(err) || errors.As(err, &final) && final.NonRetryable() {
		return ctx, err
	}
	if err := workflow.Sleep(ctx, r.In); err != nil {
		return ctx, err
	}
	payload, err := converter.GetDefaultDataConverter().ToPayload(header{Ticket: r.Ticket, Cost: cost})
	if err != nil {
		return ctx, err
	}
	return workflow.WithValue(ctx, bookedKey{}, booked{name: name, payload: payload}), nil
}

// bookingTimeout is how long a workflow waits for its reservation. A store that takes longer
// counts as unavailable.
const bookingTimeout = 10 * time.Second

// booking is the argument of the local activity that books, and reservation its result.
type (
	booking struct {
		Name string
		Cost outbound.Cost
	}
	reservation struct {
		In     time.Duration
		Ticket string
	}
)

// bookReservation runs only in a worker without the interceptor. Its name is in the histories of
// workflows, so it stays.
func bookReservation(context.Context, booking) (reservation, error) {
	return reservation{}, temporal.NewNonRetryableApplicationError("temporaljobs: Await needs an interceptor of NewInterceptor in the worker of the workflow", "", nil)
}

// book books the reservation of an activity for its workflow.
func (p *pacer) book(ctx context.Context, info activity.Info, b booking) (reservation, error) {
	info.ActivityType.Name, info.IsLocalActivity = b.Name, false
	limiter, _ := p.limiter(info)
	books, ok := jobs.Of(limiter)
	if !ok {
		return reservation{}, nil
	}
	runs, err := books.Book(ctx, b.Cost)
	if err := permanent(err); err != nil {
		return reservation{}, err
	}
	if errors.Is(err, outbound.ErrInvalid) { // the key of a Keyed that has no Scheduler
		return reservation{}, nil
	}
	if err != nil || len(runs) != 1 {
		activity.GetLogger(ctx).Warn("The activity books its reservation when it runs.", "Error", err)
		return reservation{}, nil
	}
	return reservation{In: time.Until(runs[0].At), Ticket: runs[0].Ticket}, nil
}

// headerKey is the key of an activity's header for what its workflow has booked.
const headerKey = "dripfeed-reservation"

// header is its value.
type header struct {
	Ticket string
	Cost   outbound.Cost
}

// bookedKey is where a workflow's ctx has what was booked for the activities of a name.
type (
	bookedKey struct{}
	booked    struct {
		name    string
		payload *commonpb.Payload
	}
)

type workflows struct {
	interceptor.WorkflowInboundInterceptorBase
}

// Init implements [interceptor.WorkflowInboundInterceptor].
func (w *workflows) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return w.Next.Init(&starts{interceptor.WorkflowOutboundInterceptorBase{Next: next}})
}

type starts struct {
	interceptor.WorkflowOutboundInterceptorBase
}

// ExecuteActivity implements [interceptor.WorkflowOutboundInterceptor].
func (s *starts) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	if b, ok := ctx.Value(bookedKey{}).(booked); ok && b.name == name {
		interceptor.WorkflowHeader(ctx)[headerKey] = b.payload
	}
	return s.Next.ExecuteActivity(ctx, name, args...)
}
