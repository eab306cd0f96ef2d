package riverjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Plugin paces the jobs of a [river.Client]: put it into Config.Plugins, or into the Plugins of a
// kind of jobs. Set its fields before the first job and change none afterwards. It has no state of
// its own, so that many clients may share it.
type Plugin struct {
	river.PluginDefaults
	// Limiter returns the limiter of a job and what the job costs, most often Cost{1}: there is no
	// default. The plugin calls it for each run of a job, and with AtInsert for each insertion, so it
	// must be quick. It must not change args, which are JSON. With a nil limiter the job is not paced.
	//
	// Most often the limiter is a [jobs.Scheduler] that all jobs of a limit share. With any other
	// limiter, a refused job is snoozed for RetryAfter.
	Limiter func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost)
	// AtInsert books the reservations of jobs when they are inserted, so that most of them run once:
	// see [Plugin.InsertMany].
	AtInsert bool
}

// Work implements [rivertype.WorkerMiddleware]. It runs the job once its limiter admits it, with
// the permit in ctx, for [outbound.PermitFrom], and ends the permit when the job returns.
//
// Work snoozes a job whose wait is longer than its Scheduler lets it wait in the worker. The job
// keeps its attempt, gets no error, and has the ticket of its reservation in its metadata. Work
// also snoozes a job that returns an [*outbound.ThrottledError], for instance of its http.Client:
// that job then starts again. A job whose own time is over has failed: see [jobs.AsLater]. Work
// passes on an error that is a [river.JobCancel] or a [river.JobSnooze].
//
// Work cancels a job with an [*outbound.CostError], because its cost can
// never be admitted. Any other error is a failure of the job to River.
func (p *Plugin) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	if p.Limiter == nil {
		return fmt.Errorf("riverjobs: %w: nil Limiter of the Plugin", outbound.ErrInvalid)
	}
	ticket := kept(job.Metadata).Ticket
	run := func(ctx context.Context) error {
		if ticket != "" {
			setTicket(ctx, nil) // its reservation is used: if the job fails, it is to book again
		}
		return doInner(ctx)
	}
	limiter, cost := p.Limiter(job.Kind, job.Queue, job.EncodedArgs)
	if limiter == nil {
		limiter = unpaced{}
	}
	ran, pause, err := jobs.Do(jobs.WithTicket(ctx, ticket), limiter, cost, run)
	later, isLater := jobs.AsLater(err)
	switch {
	case errors.Is(err, &river.JobCancelError{}), errors.Is(err, &river.JobSnoozeError{}):
		return err
	case isLater:
		if later.Ticket != "" {
			setTicket(ctx, later.Ticket)
		}
		return river.JobSnooze(max(0, later.In))
	case errors.As(err, new(*outbound.CostError)):
		return river.JobCancel(err)
	case ran:
		if pause > 0 {
			job.Metadata = with(job.Metadata, pauseKey, time.Now().Add(pause)) // River does not write it: RetryPolicy reads it
		}
		return err
	case ctx.Err() == context.Canceled: // the client stops, and the job has not run
		return river.JobSnooze(0)
	}
	return err
}

// unpaced is the limiter of a job that is not paced: it runs even if its ctx has ended.
type unpaced struct{}

func (unpaced) Acquire(context.Context, outbound.Cost) (p outbound.Permit, err error) { return }

// RetryPolicy returns a policy for Config.RetryPolicy of a [river.Client] with a Plugin. It is
// next, or River's own if next is nil, but it waits for the end of a pause that the API has asked
// for. A worker's own NextRetry overrides all policies.
func RetryPolicy(next river.ClientRetryPolicy) river.ClientRetryPolicy {
	if next == nil {
		next = new(river.DefaultClientRetryPolicy)
	}
	return retryPolicy{next}
}

type retryPolicy struct{ next river.ClientRetryPolicy }

// NextRetry implements [river.ClientRetryPolicy].
func (r retryPolicy) NextRetry(job *rivertype.JobRow) time.Time {
	at, until := r.next.NextRetry(job), kept(job.Metadata).Pause
	if until.After(at) {
		return until
	}
	return at
}

// ticketKey is where the ticket of a job's reservation is in its metadata, and pauseKey the end of
// a pause.
const ticketKey, pauseKey = "dripfeed_ticket", "dripfeed_pause"

// metadata is what this package keeps there. The Scheduler checks the ticket.
type metadata struct {
	Ticket string    `json:"dripfeed_ticket"`
	Pause  time.Time `json:"dripfeed_pause"`
}

func kept(of []byte) (m metadata) {
	_ = json.Unmarshal(of, &m)
	return m
}

// with returns metadata with a value of ours, or as it is if it is no object.
func with(of []byte, key string, value any) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(of, &all) != nil || all == nil {
		return of
	}
	all[key], _ = json.Marshal(value)
	of, _ = json.Marshal(all)
	return of
}

// setTicket makes River write the ticket together with the result of the run.
func setTicket(ctx context.Context, ticket any) {
	_ = river.MetadataSet(ctx, ticketKey, ticket) // it fails only outside of a job
}
