package riverjobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
)

// These tests are of River itself: the plugin relies on what they check. If one fails after an
// upgrade, so does the plugin.

func nothing(context.Context, *river.Job[call]) error { return nil }

func metadata(t testing.TB, j *rivertype.JobRow) (m map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(j.Metadata, &m))
	return m
}

func TestRiver_SnoozeIsNoAttempt(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, nil, nothing, middleware(func(ctx context.Context, j *rivertype.JobRow, doInner func(context.Context) error) error {
		assert.Equal(t, 1, j.Attempt)
		m := metadata(t, j)
		switch m["mine"] {
		case nil:
			assert.NoError(t, river.MetadataSet(ctx, "mine", "a"))
		case "a":
			assert.NoError(t, river.MetadataSet(ctx, "mine", "b"))
		default:
			assert.NoError(t, river.MetadataSet(ctx, "mine", nil))
			return doInner(ctx)
		}
		return river.JobSnooze(0)
	}))
	row := c.awaitState(t, c.add(t, 1, &river.InsertOpts{MaxAttempts: 1, Metadata: []byte(`{"yours":1}`)}), rivertype.JobStateCompleted)
	require.Equal(t, 1, row.Attempt)
	require.Empty(t, row.Errors)
	require.Equal(t, map[string]any{"mine": nil, "yours": 1.0, "snoozes": 2.0}, metadata(t, row))
	require.Zero(t, c.failures.calls.Load())
}

func TestRiver_ThrottledErrorDiscardsAJob(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, nil, func(context.Context, *river.Job[call]) error {
		return &outbound.ThrottledError{RetryAfter: time.Second}
	})
	row := c.awaitState(t, c.add(t, 1, &river.InsertOpts{MaxAttempts: 1}), rivertype.JobStateDiscarded)
	require.Len(t, row.Errors, 1)
	require.EqualValues(t, 1, c.failures.calls.Load())
}

func TestRiver_CancelIsPermanent(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, nil, nothing, middleware(func(context.Context, *rivertype.JobRow, func(context.Context) error) error {
		return river.JobCancel(errors.New("too large"))
	}))
	row := c.awaitState(t, c.add(t, 1, nil), rivertype.JobStateCancelled)
	require.Len(t, row.Errors, 1)
	require.Contains(t, row.Errors[0].Error, "too large")
	require.Zero(t, c.failures.calls.Load())
}

func TestRiver_JobTimeoutBeginsBehindTheMiddleware(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, nil, func(ctx context.Context, _ *river.Job[call]) error {
		_, has := ctx.Deadline()
		assert.True(t, has)
		return ctx.Err()
	}, func(c *river.Config) { c.JobTimeout = 500 * time.Millisecond }, middleware(func(ctx context.Context, _ *rivertype.JobRow, doInner func(context.Context) error) error {
		_, has := ctx.Deadline()
		assert.False(t, has)
		time.Sleep(600 * time.Millisecond) // a wait for longer than the timeout
		assert.NoError(t, ctx.Err())
		return doInner(ctx)
	}))
	require.Empty(t, c.awaitState(t, c.add(t, 1, nil), rivertype.JobStateCompleted).Errors)
}

// A job that is away for more than 5 s is scheduled, and only the leader has it come back. One that
// is away for less is available before it is due, and is not worked before.
func TestRiver_LeaderReturnsScheduledJobs(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	away := map[int]time.Duration{1: time.Second, 2: 5500 * time.Millisecond}
	var mu sync.Mutex
	begun, back := map[int]time.Time{}, map[int]time.Duration{}
	c := d.start(t, nil, func(_ context.Context, j *river.Job[call]) error {
		mu.Lock()
		defer mu.Unlock()
		if begun[j.Args.N].IsZero() {
			begun[j.Args.N] = time.Now()
			return river.JobSnooze(away[j.Args.N])
		}
		back[j.Args.N] = time.Since(begun[j.Args.N])
		return nil
	})
	short := c.add(t, 1, nil)
	require.Equal(t, rivertype.JobStateAvailable, c.awaitBack(t, short).State)
	long := c.add(t, 2, nil)
	require.Equal(t, rivertype.JobStateScheduled, c.awaitBack(t, long).State)
	c.awaitState(t, short, rivertype.JobStateCompleted)
	c.awaitState(t, long, rivertype.JobStateCompleted)
	for n, d := range away {
		require.GreaterOrEqual(t, back[n], d)
	}
}

func TestRiver_WithoutALeaderNoScheduledJobReturns(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, nil, nothing, func(c *river.Config) { c.LeaderElectionDisabled = true })
	id := c.add(t, 1, &river.InsertOpts{ScheduledAt: time.Now().Add(100 * time.Millisecond)})
	c.awaitState(t, c.add(t, 2, nil), rivertype.JobStateCompleted)
	time.Sleep(500 * time.Millisecond) // it is due, and the client has looked for jobs since
	c.awaitState(t, c.add(t, 3, nil), rivertype.JobStateCompleted)
	require.Equal(t, rivertype.JobStateScheduled, c.job(t, id).State)
	d.start(t, nil, nothing)
	c.awaitState(t, id, rivertype.JobStateCompleted)
}

// inserts is a plugin that sees what is inserted, and makes every plain job wait for a second, available.
type inserts struct {
	river.PluginDefaults
	mu   sync.Mutex
	seen []rivertype.JobInsertParams
}

func (p *inserts) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, job := range params {
		p.seen = append(p.seen, *job)
		if job.State == rivertype.JobStateAvailable {
			at := time.Now().Add(time.Second)
			job.ScheduledAt, job.Metadata = &at, []byte(`{"mine":true}`)
		}
	}
	return doInner(ctx)
}

func TestRiver_InsertMiddlewareMaySchedule(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	p := new(inserts)
	ran := make(chan time.Time, 10)
	c := d.start(t, nil, func(context.Context, *river.Job[call]) error { ran <- time.Now(); return nil }, func(c *river.Config) {
		c.Plugins = append(c.Plugins, p)
	})
	far := time.Now().Add(time.Hour)
	begun := time.Now()
	plain, err := c.Insert(t.Context(), call{1}, nil)
	require.NoError(t, err)
	require.Equal(t, rivertype.JobStateAvailable, plain.Job.State)
	require.Equal(t, true, metadata(t, plain.Job)["mine"])
	c.add(t, 2, &river.InsertOpts{ScheduledAt: far})
	c.add(t, 3, &river.InsertOpts{Pending: true})
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	first, err := c.Insert(t.Context(), call{4}, unique)
	require.NoError(t, err)
	// A job that is away is as unique as one that is there.
	second, err := c.Insert(t.Context(), call{4}, unique)
	require.NoError(t, err)
	require.False(t, first.UniqueSkippedAsDuplicate)
	require.True(t, second.UniqueSkippedAsDuplicate)

	p.mu.Lock()
	states := []rivertype.JobState{}
	for _, job := range p.seen {
		states = append(states, job.State)
		assert.Equal(t, job.State == rivertype.JobStateScheduled, job.ScheduledAt != nil)
		assert.JSONEq(t, "{}", string(job.Metadata))
	}
	require.Equal(t, []rivertype.JobState{"available", "scheduled", "pending", "available", "available"}, states)
	require.Empty(t, p.seen[0].UniqueKey)
	require.NotEmpty(t, p.seen[3].UniqueKey)
	p.mu.Unlock()

	c.awaitState(t, plain.Job.ID, rivertype.JobStateCompleted)
	require.GreaterOrEqual(t, (<-ran).Sub(begun), time.Second)

	// Each way to insert jobs goes through it.
	p.mu.Lock()
	p.seen = nil
	p.mu.Unlock()
	many := []river.InsertManyParams{{Args: call{5}}}
	_, err = c.InsertMany(t.Context(), many)
	require.NoError(t, err)
	_, err = c.InsertManyFast(t.Context(), many)
	require.NoError(t, err)
	tx, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = c.InsertTx(t.Context(), tx, call{6}, nil)
	require.NoError(t, err)
	_, err = c.InsertManyTx(t.Context(), tx, many)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Len(t, p.seen, 4)
}

// A process that dies leaves its jobs running, those that only wait among them.
func TestRiver_RescueIsAnAttempt(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c, err := d.newClient(nil, nothing)
	require.NoError(t, err)
	last, more, recent := c.add(t, 1, &river.InsertOpts{MaxAttempts: 1}), c.add(t, 2, nil), c.add(t, 3, nil)
	_, err = d.pool.Exec(t.Context(), "UPDATE "+d.schema+".river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '61 min'")
	require.NoError(t, err)
	_, err = d.pool.Exec(t.Context(), "UPDATE "+d.schema+".river_job SET attempted_at = now() - interval '50 min' WHERE id = $1", recent)
	require.NoError(t, err)
	require.NoError(t, c.Start(context.Background()))
	t.Cleanup(func() { c.end(t) })
	require.Len(t, c.awaitState(t, last, rivertype.JobStateDiscarded).Errors, 1)
	require.Zero(t, c.failures.calls.Load())
	require.Len(t, c.job(t, more).Errors, 1)
	require.NotEqual(t, rivertype.JobStateDiscarded, c.job(t, more).State)
	require.Equal(t, rivertype.JobStateRunning, c.job(t, recent).State)
}
