package riverjobs_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

var (
	_ rivertype.Plugin              = (*riverjobs.Plugin)(nil)
	_ rivertype.WorkerMiddleware    = (*riverjobs.Plugin)(nil)
	_ rivertype.JobInsertMiddleware = (*riverjobs.Plugin)(nil)
)

// limiter is a limiter that is a function.
type limiter func(ctx context.Context, c outbound.Cost) (outbound.Permit, error)

func (l limiter) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return l(ctx, c)
}

// permit is a call that reports its end.
type permit struct {
	outbound.Permit
	done func()
}

func (p *permit) Done() { p.done() }

// The result of the limiter or of the job decides what River does with the job. A permit ends with
// its job.
func TestPlugin_ResultsOfAJob(t *testing.T) {
	var (
		snooze      = func(d time.Duration) error { return river.JobSnooze(d) }
		boom        = errors.New("boom")
		full        = &outbound.ThrottledError{RetryAfter: 3 * time.Second}
		unavailable = &outbound.StoreError{Op: "book", Err: store.ErrUnavailable}
		large       = &outbound.CostError{Err: outbound.ErrTooLarge}
		bad         = &outbound.CostError{Err: outbound.ErrInvalid}
	)
	for name, c := range map[string]struct {
		acquire, job, want error
		runs               bool
	}{
		"admitted":                        {want: nil, runs: true},
		"a Later":                         {acquire: &jobs.Later{In: time.Second, Ticket: "x"}, want: snooze(time.Second)},
		"a Later, wrapped":                {acquire: fmt.Errorf("mine: %w", &jobs.Later{In: time.Second}), want: snooze(time.Second)},
		"a Later at a shutdown":           {acquire: &jobs.Later{Err: context.Canceled}, want: snooze(0)},
		"a Later of an unavailable store": {acquire: &jobs.Later{In: 2 * time.Second, Err: unavailable}, want: snooze(2 * time.Second)},
		"a negative Later":                {acquire: &jobs.Later{In: -time.Second}, want: snooze(0)},
		"refused by a bucket":             {acquire: full, want: snooze(3 * time.Second)},
		"too large":                       {acquire: large, want: river.JobCancel(large)},
		"an invalid cost":                 {acquire: bad, want: river.JobCancel(bad)},
		"a mistake":                       {acquire: outbound.ErrInvalid, want: outbound.ErrInvalid},
		"a shutdown ends the wait":        {acquire: fmt.Errorf("waiting: %w", context.Canceled), want: snooze(0)},
		"the job fails":                   {job: boom, want: boom, runs: true},
		"the job is refused inside":       {job: fmt.Errorf("get: %w", full), want: snooze(3 * time.Second), runs: true},
		"the job's own call is too large": {job: large, want: river.JobCancel(large), runs: true},
		"the job cancels itself":          {job: river.JobCancel(full), want: river.JobCancel(full), runs: true},
		"the job snoozes itself":          {job: errors.Join(full, snooze(time.Minute)), want: errors.Join(full, snooze(time.Minute)), runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, shutdown := context.WithCancel(t.Context())
			defer shutdown()
			ended, ran := false, false
			l := limiter(func(_ context.Context, cost outbound.Cost) (outbound.Permit, error) {
				assert.Equal(t, outbound.Cost{7}, cost)
				if errors.Is(c.acquire, context.Canceled) {
					shutdown()
				}
				if c.acquire != nil {
					return outbound.Permit{}, c.acquire
				}
				return outbound.NewPermit(&permit{done: func() { ended = true }}), nil
			})
			p := &riverjobs.Plugin{Limiter: func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost) {
				assert.Equal(t, []string{"k", "q", "{}"}, []string{kind, queue, string(args)})
				return l, outbound.Cost{7}
			}}
			job := &rivertype.JobRow{Kind: "k", Queue: "q", EncodedArgs: []byte("{}")}
			err := p.Work(ctx, job, func(ctx context.Context) error {
				ran = true
				assert.True(t, outbound.PermitFrom(ctx).Pending())
				return c.job
			})
			require.Equal(t, c.want, err)
			require.Equal(t, c.runs, ran)
			require.Equal(t, c.runs, ended)
		})
	}
}

// A job without a limiter is River's, and its error too. A plugin without a Limiter runs no job.
func TestPlugin_UnpacedJobRuns(t *testing.T) {
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job := func(context.Context) error { return boom }
	require.Equal(t, boom, (&riverjobs.Plugin{Limiter: one(nil)}).Work(ctx, new(rivertype.JobRow), job))
	require.ErrorIs(t, new(riverjobs.Plugin).Work(t.Context(), new(rivertype.JobRow), job), outbound.ErrInvalid)
}

// Metadata that another program has written stops no job.
func TestPlugin_ReadsAnyMetadata(t *testing.T) {
	for _, text := range []string{"", "null", "[]", "{", `{"dripfeed_ticket":5}`, `{"dripfeed_ticket":{}}`, `{"dripfeed_ticket":"\u0000x"}`, `{"dripfeed_ticket":null}`} {
		b := outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1)))
		p := &riverjobs.Plugin{Limiter: one(jobs.New(b, jobs.Config{}))}
		ran := false
		err := p.Work(t.Context(), &rivertype.JobRow{Metadata: []byte(text)}, func(context.Context) error { ran = true; return nil })
		require.NoError(t, err, text)
		require.True(t, ran, text)
	}
}

// soon is a policy that tries again after its duration.
type soon time.Duration

func (s soon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(time.Duration(s)) }

// RetryPolicy waits for the later of the pause and the time of the next policy, which by default is
// River's.
func TestRetryPolicy_WaitsForPauseOrNext(t *testing.T) {
	for name, pause := range map[string]time.Duration{"no pause": 0, "short": time.Minute, "long": time.Hour} {
		l := outbound.Must(outbound.NewBucket("b", outbound.PerSecond(100)))
		job, boom := &rivertype.JobRow{Metadata: []byte(`{"yours":1}`)}, errors.New("boom")
		err := (&riverjobs.Plugin{Limiter: one(l)}).Work(t.Context(), job, func(ctx context.Context) error {
			if pause > 0 {
				outbound.PermitFrom(ctx).Refused(pause)
			}
			return boom
		})
		require.Equal(t, boom, err)
		require.Equal(t, 1.0, metadata(t, job)["yours"])
		next := time.Until(riverjobs.RetryPolicy(soon(10 * time.Minute)).NextRetry(job))
		require.InDelta(t, max(pause, 10*time.Minute).Minutes(), next.Minutes(), 0.5, name)
		rivers := time.Until(riverjobs.RetryPolicy(nil).NextRetry(job))
		require.InDelta(t, pause.Minutes(), rivers.Minutes(), 0.5, name)
	}
}

// A job whose own time is over is discarded after its attempts.
func TestPlugin_OwnTimeOverCountsAsAnAttempt(t *testing.T) {
	for name, job := range jobtest.OwnTime() {
		inDatabase(t, name, func(t *testing.T, d *database) {
			var runs atomic.Int64
			c := d.start(t, &riverjobs.Plugin{Limiter: one(nil)}, func(ctx context.Context, _ *river.Job[call]) error {
				runs.Add(1)
				return job(ctx)
			}, func(c *river.Config) { c.RetryPolicy = riverjobs.RetryPolicy(soon(0)) })
			row := c.awaitState(t, c.add(t, &river.InsertOpts{MaxAttempts: 3}), rivertype.JobStateDiscarded)
			require.Equal(t, []int{3, 3}, []int{row.Attempt, int(runs.Load())})
			require.Len(t, row.Errors, 3)
		})
	}
}
