package riverjobs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// slack is what History.Check allows beyond the limit, in units: those that leak in the 250 ms by
// which a job may call late, after the Scheduler has admitted it, on a machine that is busy.
func slack(rate float64) float64 { return rate * 0.25 }

// slow has a reservation for a job every hour: so the second of two is rescheduled until quicken.
var slow = outbound.PerHour(1)

// quicken sets limits that admit the job when it runs next, and makes it run.
func (c *client) quicken(t testing.TB, l *jobs.Scheduler, id int64) {
	t.Helper()
	require.NoError(t, l.SetLimits(t.Context(), outbound.PerSecond(20)))
	c.runNow(t, id)
}

// runNow makes a job due that was rescheduled.
func (c *client) runNow(t testing.TB, id int64) {
	t.Helper()
	_, err := c.JobRetry(t.Context(), id)
	require.NoError(t, err)
}

func TestPlugin_SnoozedJobKeepsItsReservation(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	var calls outboundtest.History
	l := d.scheduler(slow)
	c := d.start(t, &riverjobs.Plugin{Limiter: one(l)}, func(context.Context, *river.Job[call]) error {
		calls.Add(time.Now(), 1)
		return nil
	})
	last := &river.InsertOpts{MaxAttempts: 1, Metadata: []byte(`{"yours":1}`)}
	c.awaitState(t, c.add(t, 1, last), rivertype.JobStateCompleted)
	id := c.add(t, 2, last)
	row := c.awaitBack(t, id)
	require.Zero(t, row.Attempt)
	ticket := metadata(t, row)["dripfeed_ticket"]
	require.NotEmpty(t, ticket)
	require.Equal(t, 1.0, metadata(t, row)["yours"])

	c.runNow(t, id)
	row = c.awaitBack(t, id)
	require.Equal(t, ticket, metadata(t, row)["dripfeed_ticket"], "a job that comes early keeps its place")
	require.Zero(t, row.Attempt)
	require.Equal(t, 1, calls.Len())

	c.quicken(t, l, id)
	row = c.awaitState(t, id, rivertype.JobStateCompleted)
	require.Equal(t, 1, row.Attempt)
	require.Empty(t, row.Errors)
	require.Contains(t, metadata(t, row), "dripfeed_ticket")
	require.Nil(t, metadata(t, row)["dripfeed_ticket"], "the next run is to book anew")
	require.Zero(t, c.failures.calls.Load())
	require.Equal(t, 2, calls.Len())
}

// Two processes share a rate. Each job waits for up to a second in a worker, for far longer than its
// JobTimeout.
func TestPlugin_ProcessesShareARate(t *testing.T) {
	t.Parallel()
	for name, atInsert := range map[string]bool{"booked when they run": false, "booked at insertion": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, rate = 60, 20
			d := newDatabase(t)
			var calls outboundtest.History
			fleet := make([]*client, 2)
			for i := range fleet {
				plugin := &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(rate))), AtInsert: atInsert}
				fleet[i] = d.start(t, plugin, func(context.Context, *river.Job[call]) error {
					calls.Add(time.Now(), 1)
					return nil
				}, func(c *river.Config) { c.JobTimeout = 300 * time.Millisecond })
			}
			fleet[0].addMany(t, n)
			d.awaitAll(t, n)
			require.Zero(t, d.count(t, "cardinality(errors) > 0 OR attempt <> 1"))
			runs := 0
			for _, c := range fleet {
				require.Zero(t, c.failures.calls.Load())
				runs += int(c.runs.Load())
			}
			require.LessOrEqual(t, runs, 3*n)
			require.Equal(t, n, calls.Len())
			require.NoError(t, calls.Check(1, rate, slack(rate)))
		})
	}
}

// The jobs of a long backlog wait until their clients have a leader, and then come in a bunch.
func TestPlugin_LateJobsStayWithinTheLimit(t *testing.T) {
	t.Parallel()
	const n, rate = 40, 20
	d := newDatabase(t)
	var calls outboundtest.History
	plugin := &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(rate))), AtInsert: true}
	f := func(context.Context, *river.Job[call]) error {
		calls.Add(time.Now(), 1)
		return nil
	}
	c, err := d.newClient(plugin, f)
	require.NoError(t, err)
	c.addMany(t, n)
	_, err = d.pool.Exec(t.Context(), "UPDATE "+d.schema+".river_job SET state = 'scheduled', scheduled_at = now()")
	require.NoError(t, err)
	require.NoError(t, c.Start(context.Background()))
	t.Cleanup(func() { c.end(t) })
	d.awaitAll(t, n)
	require.Zero(t, d.count(t, "cardinality(errors) > 0"))
	require.NoError(t, calls.Check(1, rate, slack(rate)))
}

func TestPlugin_CostAboveCapacityIsCancelled(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	l := d.scheduler(slow)
	plugin := &riverjobs.Plugin{AtInsert: true, Limiter: func(string, string, []byte) (outbound.Limiter, outbound.Cost) { return l, outbound.Cost{2} }}
	c := d.start(t, plugin, func(context.Context, *river.Job[call]) error { t.Error("the job runs"); return nil })
	row := c.awaitState(t, c.add(t, 1, nil), rivertype.JobStateCancelled)
	require.Contains(t, row.Errors[0].Error, "exceeds limit")
	require.Zero(t, c.failures.calls.Load())
}

// patient returns a Scheduler whose jobs wait in a worker for up to a minute.
func (d *database) patient(t *testing.T) *jobs.Scheduler {
	b := outbound.Must(outbound.NewSharedBucket(d.store(), "k", outbound.PerMinute(2)))
	require.NoError(t, outbound.Do(t.Context(), b, outbound.Cost{1}, func(context.Context) error { return nil }))
	return jobs.New(b, jobs.Config{HeadStart: time.Minute})
}

func (c *client) awaitWaiting(t *testing.T, l *jobs.Scheduler) {
	t.Helper()
	require.Eventually(t, func() bool { return l.Queue().Len() > 0 }, patience, time.Millisecond, "nobody waits")
}

func TestPlugin_StopKeepsAttemptsOfWaitingJobs(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(context.Context, *client, *jobs.Scheduler) error{
		"stop and cancel":            func(ctx context.Context, c *client, _ *jobs.Scheduler) error { return c.StopAndCancel(ctx) },
		"a soft stop with a timeout": func(ctx context.Context, c *client, _ *jobs.Scheduler) error { return c.Stop(ctx) },
		"the queue is closed first": func(ctx context.Context, c *client, l *jobs.Scheduler) error {
			return errors.Join(l.Queue().Close(), c.Stop(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			l := d.patient(t)
			begun := time.Now()
			c := d.start(t, &riverjobs.Plugin{Limiter: one(l)}, nothing, func(c *river.Config) {
				if name != "the queue is closed first" {
					c.SoftStopTimeout = 100 * time.Millisecond
				}
			})
			id := c.add(t, 1, &river.InsertOpts{MaxAttempts: 1})
			c.awaitWaiting(t, l)
			require.NoError(t, stop(t.Context(), c, l))
			row := c.job(t, id)
			if time.Since(begun) < 29*time.Second { // else the job's time may have come
				require.Contains(t, []rivertype.JobState{rivertype.JobStateAvailable, rivertype.JobStateScheduled}, row.State)
				require.NotEmpty(t, metadata(t, row)["dripfeed_ticket"])
				require.Zero(t, row.Attempt)
			}
			require.Empty(t, row.Errors)
			require.Zero(t, c.failures.calls.Load())
		})
	}
}

func TestPlugin_WaitingJobCanBeCancelled(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	l := d.patient(t)
	c := d.start(t, &riverjobs.Plugin{Limiter: one(l)}, nothing)
	id := c.add(t, 1, nil)
	c.awaitWaiting(t, l)
	_, err := c.JobCancel(t.Context(), id)
	require.NoError(t, err)
	c.awaitState(t, id, rivertype.JobStateCancelled)
	require.Zero(t, c.failures.calls.Load())
}

// However long the API wants a pause, no worker waits for it.
func TestPlugin_HoldFreesWorkers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	l := d.scheduler(outbound.PerSecond(20))
	held := outbound.Must(outbound.NewSharedBucket(d.store(), "k", outbound.PerSecond(20)))
	require.NoError(t, held.Hold(t.Context(), time.Hour))
	c := d.start(t, &riverjobs.Plugin{Limiter: one(l)}, func(context.Context, *river.Job[call]) error { t.Error("the job runs"); return nil })
	row := c.awaitBack(t, c.add(t, 1, nil))
	require.Equal(t, rivertype.JobStateScheduled, row.State)
	require.Greater(t, time.Until(row.ScheduledAt), 50*time.Minute)
}

// mortal is a store that may be away.
type mortal struct {
	store.Store
	away atomic.Bool
}

func (s *mortal) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if s.away.Load() {
		return store.Reply{}, fmt.Errorf("%w: by the test", store.ErrUnavailable)
	}
	return s.Store.Update(ctx, key, op)
}

func TestPlugin_UnavailableStoreFailsNoJob(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	s := &mortal{Store: d.store()}
	s.away.Store(true)
	c := d.start(t, &riverjobs.Plugin{Limiter: one(schedulerOf(s, slow)), AtInsert: true}, nothing)
	id := c.add(t, 1, &river.InsertOpts{MaxAttempts: 1}) // an insertion does not fail either
	c.awaitBack(t, id)
	s.away.Store(false)
	row := c.awaitState(t, id, rivertype.JobStateCompleted)
	require.Equal(t, 1, row.Attempt)
	require.Empty(t, row.Errors)
	require.Zero(t, c.failures.calls.Load())
}

// What the API refuses is a failure, as River counts them. River alone would call again after 1 s.
func TestPlugin_RefusedCallRetriesAfterThePause(t *testing.T) {
	t.Parallel()
	const pause = 3 * time.Second
	d := newDatabase(t)
	var calls outboundtest.History
	c := d.start(t, &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(20)))}, func(ctx context.Context, _ *river.Job[call]) error {
		calls.Add(time.Now(), 1)
		if calls.Len() == 1 {
			outbound.PermitFrom(ctx).Refused(pause)
			return errors.New("429 Too Many Requests")
		}
		return nil
	})
	row := c.awaitState(t, c.add(t, 1, nil), rivertype.JobStateCompleted)
	require.Len(t, row.Errors, 1)
	require.Equal(t, 2, row.Attempt)
	require.EqualValues(t, 1, c.failures.calls.Load())
	require.Equal(t, 2, calls.Len())
	// A worker knows the time of its store to half the difference of the ways there and back.
	require.GreaterOrEqual(t, calls.Total().Span(), pause-100*time.Millisecond)
}

// A job may leave its Scheduler to its http.Client. Then the plugin has no limiter for it, so that a call is
// charged once; it reschedules the job, and brings its ticket.
func TestPlugin_SchedulerInTheJobsClient(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	api, l := new(outboundtest.API), d.scheduler(slow)
	paced := &http.Client{Transport: &transport.Transport{Limiter: l, Base: api}}
	c := d.start(t, &riverjobs.Plugin{Limiter: one(nil)}, func(ctx context.Context, _ *river.Job[call]) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
		if err != nil {
			return err
		}
		res, err := paced.Do(req)
		if err != nil {
			return err
		}
		assert.Equal(t, http.StatusOK, res.StatusCode)
		return res.Body.Close()
	})
	last := &river.InsertOpts{MaxAttempts: 1}
	c.awaitState(t, c.add(t, 1, last), rivertype.JobStateCompleted)
	id := c.add(t, 2, last)
	ticket := metadata(t, c.awaitBack(t, id))["dripfeed_ticket"]
	require.NotEmpty(t, ticket)
	c.runNow(t, id)
	require.Equal(t, ticket, metadata(t, c.awaitBack(t, id))["dripfeed_ticket"])
	require.Equal(t, 1, api.Report().Arrivals)
	c.quicken(t, l, id)
	row := c.awaitState(t, id, rivertype.JobStateCompleted)
	require.Empty(t, row.Errors)
	require.LessOrEqual(t, metadata(t, row)["snoozes"], 2.0)
	require.Equal(t, 2, api.Report().Arrivals)
}
