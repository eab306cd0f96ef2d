package riverjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/line"
)

// Plugin paces the jobs of a [river.Client]: put it into Config.Plugins, or into the Plugins of a
// kind of jobs. Set its fields before the first job and change none afterwards. It has no state of
// its own, so that many clients may share it.
type Plugin struct {
	river.PluginDefaults
	// Limiter returns the limiter of a job and what the job costs. It is called for each run of
	// each kind of jobs, and with AtInsert for each that is inserted, so it is to be quick. args are
	// JSON, and are not to be changed. With a nil limiter the job is not paced.
	//
	// A limiter is most often a [line.Line], of which all jobs that share a limit share one. Any
	// other serves as well: a job that it refuses comes back after RetryAfter.
	Limiter func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost)
	// AtInsert books the places of jobs when they are inserted, so that most of them run once: see
	// [Plugin.InsertMany].
	AtInsert bool
}

// Work implements [rivertype.WorkerMiddleware]. It runs the job once its limiter admits it, with the
// permit in ctx, for [outbound.PermitFrom], and ends the permit when the job returns.
//
// A job that has to wait for longer than its line lets it wait in the worker is snoozed: it keeps its
// attempt, gets no error, and no ErrorHandler is called. The ticket of its place is in its metadata
// meanwhile. The same becomes of a job that returns the [*outbound.ThrottledError] of a limiter that it
// has met itself, as that of its http.Client: so such a job starts anew. An error that is a
// [river.JobCancel] or a [river.JobSnooze] already is left alone.
//
// A job whose cost can never go, which is [outbound.ErrTooLarge] or [outbound.ErrInvalidCost], is
// cancelled with that error, also where the job itself returns it, as that of its http.Client. Any other error is returned, and River takes it for a failure of the job: it
// is a mistake in the program, or that of a store where the limiter is no [line.Line].
func (p *Plugin) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	if p.Limiter == nil {
		return fmt.Errorf("riverjobs: %w: Limiter of the Plugin", outbound.ErrNil)
	}
	ticket, ran := ticketOf(job.Metadata), false
	run := func(ctx context.Context) error {
		ran = true
		if ticket != "" {
			setTicket(ctx, nil) // its place is used: if the job fails, it is to stand in line again
		}
		return doInner(ctx)
	}
	limiter, cost := p.Limiter(job.Kind, job.Queue, job.EncodedArgs)
	err, inLine := error(nil), line.WithTicket(ctx, ticket)
	if limiter == nil {
		err = run(inLine)
	} else {
		err = outbound.Do(inLine, limiter, cost, run)
	}
	later, isLater := line.After(err)
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
		return err
	case ctx.Err() != nil: // the client stops, and the job has not run
		return river.JobSnooze(0)
	}
	return err
}

// ticketKey is where the ticket of a job's place is in its metadata.
const ticketKey = "dripfeed_ticket"

// ticketOf returns the ticket in a job's metadata. What is none is worth nothing to a line.
func ticketOf(metadata []byte) string {
	var m struct {
		Ticket string `json:"dripfeed_ticket"`
	}
	_ = json.Unmarshal(metadata, &m) // also others write there
	return m.Ticket
}

// setTicket has River write the ticket when it writes what has become of the run.
func setTicket(ctx context.Context, ticket any) {
	_ = river.MetadataSet(ctx, ticketKey, ticket) // it fails only outside of a job
}
