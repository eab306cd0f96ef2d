package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// The types of the errors that this package makes: what ApplicationError.Type returns, and what the
// NonRetryableErrorTypes of a RetryPolicy compare with.
const (
	TypeLater = "dripfeed.Later" // the activity has not run, and was rescheduled
	TypeCost  = "dripfeed.Cost"  // the cost is above a limit's capacity
)

// NewInterceptor returns an interceptor for the Interceptors of a worker's options. It paces the
// worker's activities, and it makes [Await] work in its workflows.
//
// limiter returns the limiter of an activity, most often a [jobs.Scheduler], and the activity's
// cost, most often Cost{1}: there is no default. The SDK asks for every activity of the worker,
// sessions and local activities among them: a nil Limiter lets one run unpaced. limiter must not
// block.
//
// An activity over the limit is rescheduled. Its attempt ends with a benign ApplicationError of
// TypeLater, which asks Temporal for the next attempt shortly before the reservation. t keeps the
// tickets of activities whose workflows have not called Await. If t is nil, such an activity waits
// in its worker.
func NewInterceptor(limiter func(activity.Info) (outbound.Limiter, outbound.Cost), t Tickets) interceptor.WorkerInterceptor {
	if limiter == nil {
		limiter = func(activity.Info) (outbound.Limiter, outbound.Cost) { return noLimiter{}, outbound.Cost{} }
	}
	return &pacer{limiter: limiter, tickets: t}
}

// noLimiter reports the mistake to each activity.
type noLimiter struct{}

func (noLimiter) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, fmt.Errorf("temporaljobs: %w: nil limiter of NewInterceptor", outbound.ErrInvalid)
}

// admitted is the limiter of an activity that is not paced: it runs even if its ctx has ended.
type admitted struct{}

func (admitted) Acquire(context.Context, outbound.Cost) (p outbound.Permit, err error) { return }

// Tickets keeps the ticket of each activity that was rescheduled, for whichever worker gets its
// next attempt: in Redis, or in a table.
type Tickets interface {
	// Get returns the ticket of an activity, or "" if it is missing or unreadable.
	Get(ctx context.Context, activity string) string
	// Put keeps the ticket of an activity for ttl, and replaces an older one. An empty ticket deletes
	// it. An error is logged, and costs the activity its reservation.
	Put(ctx context.Context, activity, ticket string, ttl time.Duration) error
}

// ticketGrace is how long a ticket is kept after its next attempt is due: Temporal may be late.
const ticketGrace = time.Hour

type pacer struct {
	interceptor.WorkerInterceptorBase
	limiter func(activity.Info) (outbound.Limiter, outbound.Cost)
	tickets Tickets
}

// InterceptActivity implements [interceptor.WorkerInterceptor].
func (p *pacer) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &activities{interceptor.ActivityInboundInterceptorBase{Next: next}, p}
}

// InterceptWorkflow implements [interceptor.WorkerInterceptor].
func (p *pacer) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &workflows{interceptor.WorkflowInboundInterceptorBase{Next: next}}
}

type activities struct {
	interceptor.ActivityInboundInterceptorBase
	*pacer
}

// ExecuteActivity implements [interceptor.ActivityInboundInterceptor].
func (i *activities) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (result any, err error) {
	info := activity.GetInfo(ctx)
	if len(in.Args) == 1 {
		if b, ok := in.Args[0].(booking); ok {
			return i.book(ctx, info, b)
		}
	}
	limiter, cost := i.limiter(info)
	a := attempt{info: info, limiter: limiter, keeps: i.tickets != nil && !info.IsLocalActivity}
	if a.keeps && info.Attempt > 1 {
		a.ticket = i.tickets.Get(ctx, name(info))
	}
	run := func(ctx context.Context) (err error) {
		result, err = i.Next.ExecuteActivity(ctx, in)
		return err
	}
	if limiter == nil { // the ticket is for a limiter in the activity
		a.ran, a.pause, err = jobs.Do(jobs.WithTicket(ctx, a.ticket), admitted{}, cost, run)
		return result, i.reschedule(ctx, &a, err)
	}
	var h header
	if p := interceptor.Header(ctx)[headerKey]; p != nil && converter.GetDefaultDataConverter().FromPayload(p, &h) == nil {
		a.booked, cost = h.Ticket, h.Cost
		if a.ticket == "" { // else it is newer than the workflow's
			a.ticket = h.Ticket
		}
	}
	a.ran, a.pause, err = jobs.Do(ctx, &a, cost, run)
	return result, i.reschedule(ctx, &a, err)
}

// reschedule returns the error that makes Temporal do what err asks for.
func (p *pacer) reschedule(ctx context.Context, a *attempt, err error) error {
	later, ok := jobs.AsLater(err)
	if err != nil && a.ran && a.keeps && a.ticket != "" && (!ok || later.Ticket == "") {
		// Its reservation is used: the next attempt is charged again, and books again.
		p.keep(ctx, a, "", 0)
	}
	// An ApplicationError stays as the activity has made it. The SDK ignores one inside another error.
	if _, own := err.(*temporal.ApplicationError); err == nil || own || temporal.IsCanceledError(context.Cause(ctx)) {
		return err
	}
	if err := permanent(err); err != nil {
		return err
	}
	if a.last() {
		return err
	}
	if !ok {
		return a.afterPause(err)
	}
	if a.keeps && later.Ticket != "" && later.Ticket != a.booked {
		p.keep(ctx, a, later.Ticket, later.In)
	}
	return temporal.NewApplicationErrorWithOptions("rescheduled", TypeLater, temporal.ApplicationErrorOptions{
		NextRetryDelay: max(later.In, time.Millisecond), // 0 would be the delay of the RetryPolicy
		Category:       temporal.ApplicationErrorCategoryBenign,
		Cause:          err,
	})
}

// keep stores an activity's ticket until its next attempt, which comes in the given time.
func (p *pacer) keep(ctx context.Context, a *attempt, ticket string, in time.Duration) {
	if err := p.tickets.Put(ctx, name(a.info), ticket, min(in, math.MaxInt64-ticketGrace)+ticketGrace); err != nil {
		activity.GetLogger(ctx).Warn("The ticket of an activity is not kept.", "Error", err)
	}
}

// permanent returns the error of a cost above a limit's capacity, or nil if err is another.
func permanent(err error) error {
	if errors.As(err, new(*outbound.CostError)) {
		return temporal.NewNonRetryableApplicationError("the limits never admit this cost", TypeCost, err)
	}
	return nil
}

// name returns the same name for each attempt of an activity, except of a local one.
func name(info activity.Info) string {
	run := info.WorkflowExecution.RunID
	if run == "" {
		run = info.ActivityRunID // a workflow has not started it
	}
	return run + ":" + info.ActivityID
}
