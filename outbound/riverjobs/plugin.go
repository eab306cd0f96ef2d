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
	// default. It is called for each run of each kind of jobs, and with AtInsert for each that is
	// inserted, so it is to be quick. args are JSON, and are not to be changed. With a nil limiter the
	// job is not paced.
	//
	// A limiter is most often a [jobs.Scheduler], of which all jobs that share a limit share one. Any
	// other serves as well: a job that it refuses comes back after RetryAfter.
	Limiter func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost)
	// AtInsert books the reservations of jobs when they are inserted, so that most of them run once:
	// see [Plugin.InsertMany].
	AtInsert bool
}

// Work implements [rivertype.WorkerMiddleware]. It runs the job once its limiter admits it, with
// the permit in ctx, for [outbound.PermitFrom], and ends the permit when the job returns.
//
// A job that has to wait for longer than its Scheduler lets it wait in the worker is snoozed: it
// keeps its attempt, gets no error, and no ErrorHandler is called. The ticket of its reservation is
// in its metadata meanwhile. The same becomes of a job that returns the [*outbound.ThrottledError]
// of a limiter that it has met itself, as that of its http.Client: so such a job starts anew. An
// error that is a [river.JobCancel] or a [river.JobSnooze] already is left alone.
//
// A job whose cost can never go, which is [outbound.ErrTooLarge] or [outbound.ErrInvalidCost], is
// cancelled with that error, also where the job itself returns it, as that of its http.Client. Any
// other error is returned, and River takes it for a failure of the job: it is a mistake in the
// program, or that of a store where the limiter is no [jobs.Scheduler].
func (p *Plugin) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	if p.Limiter == nil {
		return fmt.Errorf("riverjobs: %w: Limiter of the Plugin", outbound.ErrNil)
	}
	ticket := kept(job.Metadata).Ticket
	run := func(ctx context.Context) error {
		if ticket != "" {
			setTicket(ctx, nil) // its reservation is used: if the job fails, it is to book again
		}
		return doInner(ctx)
	}
	limiter, cost := p.Limiter(job.Kind, job.Queue, job.EncodedArgs)
	ran, pause, err := true, time.Duration(0), error(nil)
	if scheduled := jobs.WithTicket(ctx, ticket); limiter == nil {
		err = run(scheduled)
	} else {
		ran, pause, err = jobs.Do(scheduled, limiter, cost, run)
	}
	later, isLater := jobs.After(err)
	switch {
	case errors.Is(err, &river.JobCancelError{}), errors.Is(err, &river.JobSnoozeError{}):
		return err
	case isLater:
		if later.Ticket != "" {
			setTicket(ctx, later.Ticket)
		}
		return river.JobSnooze(max(0, later.In))
	case errors.Is(err, outbound.ErrTooLarge), errors.Is(err, outbound.ErrInvalidCost):
		return river.JobCancel(err)
	case ran:
		if pause > 0 && err != nil {
			job.Metadata = with(job.Metadata, pauseKey, time.Now().Add(pause)) // River does not write it: RetryPolicy reads it
		}
		return err
	case ctx.Err() != nil: // the client stops, and the job has not run
		return river.JobSnooze(0)
	}
	return err
}

// RetryPolicy returns a policy for Config.RetryPolicy of a [river.Client] with a Plugin: next, or
// River's own if that is nil, but no attempt before the pause is over that the API has asked for
// when it refused the job's call. A worker's own NextRetry comes before that of all policies.
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

// metadata is what is there. What somebody else has written is none, or is the Scheduler's to
// judge.
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

// setTicket has River write the ticket when it writes what has become of the run.
func setTicket(ctx context.Context, ticket any) {
	_ = river.MetadataSet(ctx, ticketKey, ticket) // it fails only outside of a job
}
