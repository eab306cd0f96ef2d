package riverjobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
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

func TestPlugin_ResultsOfAJob(t *testing.T) {
	var (
		snooze = func(d time.Duration) error { return river.JobSnooze(d) }
		boom   = errors.New("boom")
		full   = &outbound.ThrottledError{RetryAfter: 3 * time.Second}
		away   = &outbound.StoreError{Op: "book", Err: store.ErrUnavailable}
		large  = &outbound.CostError{Err: outbound.ErrTooLarge}
		bad    = &outbound.CostError{Err: outbound.ErrInvalid}
	)
	for name, c := range map[string]struct {
		acquire, job, want error
		runs               bool
	}{
		"admitted":                        {want: nil, runs: true},
		"a Later":                         {acquire: &jobs.Later{In: time.Second, Ticket: "x"}, want: snooze(time.Second)},
		"a Later, wrapped":                {acquire: fmt.Errorf("mine: %w", &jobs.Later{In: time.Second}), want: snooze(time.Second)},
		"a Later at a shutdown":           {acquire: &jobs.Later{Err: context.Canceled}, want: snooze(0)},
		"a Later of a store that is away": {acquire: &jobs.Later{In: 2 * time.Second, Err: away}, want: snooze(2 * time.Second)},
		"a negative Later":                {acquire: &jobs.Later{In: -time.Second}, want: snooze(0)},
		"refused by a bucket":             {acquire: full, want: snooze(3 * time.Second)},
		"too large":                       {acquire: large, want: river.JobCancel(large)},
		"an invalid cost":                 {acquire: bad, want: river.JobCancel(bad)},
		"a mistake":                       {acquire: outbound.ErrInvalid, want: outbound.ErrInvalid},
		"the job fails":                   {job: boom, want: boom, runs: true},
		"the job is refused inside":       {job: fmt.Errorf("get: %w", full), want: snooze(3 * time.Second), runs: true},
		"the job's own call is too large": {job: large, want: river.JobCancel(large), runs: true},
		"the job cancels itself":          {job: river.JobCancel(full), want: river.JobCancel(full), runs: true},
		"the job snoozes itself":          {job: errors.Join(full, snooze(time.Minute)), want: errors.Join(full, snooze(time.Minute)), runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			ended, ran := false, false
			l := limiter(func(_ context.Context, cost outbound.Cost) (outbound.Permit, error) {
				assert.Equal(t, outbound.Cost{7}, cost)
				if c.acquire != nil {
					return outbound.Permit{}, c.acquire
				}
				return outbound.NewPermit(&end{done: func() { ended = true }}), nil
			})
			p := &riverjobs.Plugin{Limiter: func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost) {
				assert.Equal(t, []string{"k", "q", "{}"}, []string{kind, queue, string(args)})
				return l, outbound.Cost{7}
			}}
			job := &rivertype.JobRow{Kind: "k", Queue: "q", EncodedArgs: []byte("{}")}
			err := p.Work(t.Context(), job, func(ctx context.Context) error {
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

// end is a call that tells of its end.
type end struct {
	outbound.Permit
	done func()
}

func (e *end) Done() { e.done() }

func TestPlugin_UnpacedJobRuns(t *testing.T) {
	boom := errors.New("boom")
	p := &riverjobs.Plugin{Limiter: one(nil)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // also such a job is River's to end
	err := p.Work(ctx, new(rivertype.JobRow), func(context.Context) error { return boom })
	require.Equal(t, boom, err)
}

func TestPlugin_NilLimiterIsAnError(t *testing.T) {
	err := new(riverjobs.Plugin).Work(t.Context(), new(rivertype.JobRow), func(context.Context) error { t.Error("the job runs"); return nil })
	require.ErrorIs(t, err, outbound.ErrInvalid)
}

func TestPlugin_EndOfAWaitIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &riverjobs.Plugin{Limiter: one(limiter(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
		cancel()
		return outbound.Permit{}, fmt.Errorf("waiting: %w", ctx.Err())
	}))}
	err := p.Work(ctx, new(rivertype.JobRow), func(context.Context) error { t.Error("the job runs"); return nil })
	require.Equal(t, river.JobSnooze(0), err)
}

func TestPlugin_PanicEndsThePermit(t *testing.T) {
	ended := false
	p := &riverjobs.Plugin{Limiter: one(limiter(func(context.Context, outbound.Cost) (outbound.Permit, error) {
		return outbound.NewPermit(&end{done: func() { ended = true }}), nil
	}))}
	require.PanicsWithValue(t, "boom", func() {
		_ = p.Work(t.Context(), new(rivertype.JobRow), func(context.Context) error { panic("boom") })
	})
	require.True(t, ended)
}

// A ticket that somebody else has written is none, or is the Scheduler's to judge.
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
