package temporaljobs

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// attempt is one attempt of an activity, and the Limiter that it waits for.
type attempt struct {
	info    activity.Info
	limiter outbound.Limiter
	ticket  string
	booked  string        // the ticket that the workflow gives to each attempt
	keeps   bool          // Tickets or the workflow keeps the ticket
	ran     bool          // the activity itself has begun
	pause   time.Duration // that the API asks for
}

// last reports whether Temporal makes no attempt after this one.
func (a *attempt) last() bool {
	p := a.info.RetryPolicy
	return p != nil && p.MaximumAttempts > 0 && a.info.Attempt >= p.MaximumAttempts
}

// afterPause returns the error of an activity as the SDK would send it, and asks for no attempt
// before the API's pause is over.
func (a *attempt) afterPause(err error) error {
	of := reflect.TypeOf(err)
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if a.pause <= a.backoff() || errors.Is(err, activity.ErrResultPending) || strings.HasPrefix(of.PkgPath(), "go.temporal.io/") {
		return err
	}
	name := of.Name()
	if name == "errorString" {
		name = "" // as in the SDK
	}
	return temporal.NewApplicationErrorWithOptions(err.Error(), name, temporal.ApplicationErrorOptions{NextRetryDelay: a.pause, Cause: errors.Unwrap(err)})
}

// backoff returns the delay of the activity's RetryPolicy before the next attempt.
func (a *attempt) backoff() time.Duration {
	p := a.info.RetryPolicy
	if p == nil {
		return 0
	}
	d := float64(p.InitialInterval) * math.Pow(p.BackoffCoefficient, float64(a.info.Attempt-1))
	if p.MaximumInterval > 0 {
		d = min(d, float64(p.MaximumInterval))
	}
	return time.Duration(min(d, 1<<62))
}

// Acquire implements [outbound.Limiter]. It waits if the activity cannot be rescheduled: on the
// last attempt, or if its ticket would be lost.
func (a *attempt) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	waiting, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { a.watch(ctx, waiting.Done(), cancel) })
	defer watch.Wait() // its last heartbeat goes before the activity's first
	defer cancel()
	for {
		permit, err := a.limiter.Acquire(jobs.WithTicket(waiting, a.ticket), c)
		later, ok := jobs.AsLater(err)
		if err != nil && waiting.Err() != nil && ctx.Err() != context.DeadlineExceeded && !ok {
			return permit, &jobs.Later{Err: err} // the wait was ended, and nothing is wrong
		}
		if !ok || waiting.Err() != nil || !a.last() && (a.keeps || later.Ticket == "" || later.Ticket == a.booked) {
			return permit, err
		}
		in := max(later.In, time.Millisecond)
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= in {
			return permit, err
		}
		if later.Ticket != "" {
			a.ticket = later.Ticket
		}
		select {
		case <-time.After(in):
		case <-waiting.Done():
			return permit, &jobs.Later{Err: waiting.Err()}
		}
	}
}

// watch keeps an activity alive that waits: it sends heartbeats with the details that an earlier
// attempt has left. It ends the wait when the worker stops, except on the last attempt.
func (a *attempt) watch(ctx context.Context, done <-chan struct{}, cancel func()) {
	stop := activity.GetWorkerStopChannel(ctx)
	if a.last() {
		stop = nil
	}
	var beat <-chan time.Time
	if a.info.HeartbeatTimeout > 0 {
		ticker := time.NewTicker(max(a.info.HeartbeatTimeout/3, time.Millisecond))
		defer ticker.Stop()
		beat = ticker.C
	}
	for {
		select {
		case <-beat:
			if a.beat(ctx) {
				continue
			}
			if !a.last() {
				cancel()
			}
			return
		case <-stop:
			cancel()
			return
		case <-done:
			return
		}
	}
}

// beat sends a heartbeat. It returns false if a heartbeat would lose the details of an earlier
// attempt, for instance because the worker's DataConverter cannot write a RawValue.
func (a *attempt) beat(ctx context.Context) (ok bool) {
	defer func() {
		if p := recover(); p != nil { // otherwise the worker would end
			ok = false
		}
		if !ok {
			activity.GetLogger(ctx).Warn("An activity that waits cannot send heartbeats with the details of an earlier attempt.")
		}
	}()
	all := details(ctx)
	if len(all) == 0 && activity.HasHeartbeatDetails(ctx) {
		return false
	}
	activity.RecordHeartbeat(ctx, all...)
	return true
}

// details returns the heartbeat details of an earlier attempt, as they are: a heartbeat without
// them would delete them.
func details(ctx context.Context) (all []any) {
	for activity.HasHeartbeatDetails(ctx) {
		values := make([]converter.RawValue, len(all)+1)
		into := make([]any, len(values))
		for i := range values {
			into[i] = &values[i]
		}
		if err := activity.GetHeartbeatDetails(ctx, into...); err != nil || values[len(all)].Payload() == nil {
			break
		}
		all = append(all, values[len(all)])
	}
	return all
}
