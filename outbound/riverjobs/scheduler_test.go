package riverjobs_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// slack is what History.Check allows beyond the limit, in units: those that leak in the 250 ms by
// which a job may call late, after the Scheduler has admitted it, on a machine that is busy.
func slack(rate float64) float64 { return rate * 0.25 }

// slow has a reservation for a job every hour, so that the second of two jobs is rescheduled.
var slow = outbound.PerHour(1)

// once is a job that River tries once, and that has metadata of its own.
var once = &river.InsertOpts{MaxAttempts: 1, Metadata: []byte(`{"yours":1}`)}

// A job that is rescheduled, or runs early, keeps its ticket and its attempt. The Scheduler may be
// that of the job's http.Client: then the plugin has no limiter for the job, and a call is charged
// once.
func TestPlugin_SnoozedJobKeepsItsReservation(t *testing.T) {
	t.Parallel()
	for name, inClient := range map[string]bool{"a Scheduler in the plugin": false, "a Scheduler in the job's client": true} {
		inDatabase(t, name, func(t *testing.T, d *database) {
			api, l := new(outboundtest.API), d.scheduler(slow)
			plugin, client := &riverjobs.Plugin{Limiter: one(l)}, &http.Client{Transport: api}
			if inClient {
				plugin.Limiter, client.Transport = one(nil), &transport.Transport{Limiter: l, Base: api}
			}
			c := d.start(t, plugin, func(ctx context.Context, _ *river.Job[call]) error {
				return jobtest.Get(ctx, client, "http://api.example.com/")
			})
			c.awaitState(t, c.add(t, once), rivertype.JobStateCompleted)
			id := c.add(t, once)
			row := c.awaitSnooze(t, id)
			require.Zero(t, row.Attempt)
			ticket := metadata(t, row)["dripfeed_ticket"]
			require.NotEmpty(t, ticket)

			runNow := func() { jobtest.Must(c.JobRetry(t.Context(), id)) }
			runNow()
			row = c.awaitSnooze(t, id)
			require.Zero(t, row.Attempt)
			require.Equal(t, map[string]any{"yours": 1.0, "dripfeed_ticket": ticket, "snoozes": 2.0}, metadata(t, row))
			require.Equal(t, 1, api.Report().Arrivals)

			require.NoError(t, l.SetLimits(t.Context(), outbound.PerSecond(20)))
			runNow()
			row = c.awaitState(t, id, rivertype.JobStateCompleted)
			require.Equal(t, 1, row.Attempt)
			require.Empty(t, row.Errors)
			require.Equal(t, map[string]any{"yours": 1.0, "dripfeed_ticket": nil, "snoozes": 2.0}, metadata(t, row), "the next run is to book again")
			require.Equal(t, 2, api.Report().Arrivals)
		})
	}
}

// Two processes share a rate. Each job waits for up to a second in a worker, for far longer than
// its JobTimeout.
func TestPlugin_ProcessesShareARate(t *testing.T) {
	t.Parallel()
	for name, atInsert := range map[string]bool{"booked when they run": false, "booked at insertion": true} {
		inDatabase(t, name, func(t *testing.T, d *database) {
			const n, rate = 60, 20
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
			var runs int
			d.query(t, runsInSQL("sum"), &runs)
			require.LessOrEqual(t, runs, 3*n)
			require.Equal(t, n, calls.Len())
			require.NoError(t, calls.Check(1, rate, slack(rate)))
		})
	}
}

// A job whose wait in a worker ends before its reservation loses no attempt, and is no failure.
func TestPlugin_EndOfAWaitFailsNoJob(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, *client, *jobs.Scheduler, int64) error{
		"stop and cancel": func(ctx context.Context, c *client, _ *jobs.Scheduler, _ int64) error { return c.StopAndCancel(ctx) },
		"a soft stop":     func(ctx context.Context, c *client, _ *jobs.Scheduler, _ int64) error { return c.Stop(ctx) },
		"the queue is closed": func(ctx context.Context, c *client, l *jobs.Scheduler, _ int64) error {
			return errors.Join(l.Queue().Close(), c.Stop(ctx))
		},
		"the job is cancelled": func(ctx context.Context, c *client, _ *jobs.Scheduler, id int64) error {
			_, err := c.JobCancel(ctx, id)
			return err
		},
	} {
		inDatabase(t, name, func(t *testing.T, d *database) {
			l := jobs.New(d.bucket(slow), jobs.Config{HeadStart: 2 * time.Hour}) // jobs wait in their workers
			c := d.start(t, &riverjobs.Plugin{Limiter: one(l)}, nothing, func(c *river.Config) {
				if name == "a soft stop" {
					c.SoftStopTimeout = 100 * time.Millisecond
				}
			})
			c.awaitState(t, c.add(t, once), rivertype.JobStateCompleted)
			id := c.add(t, once)
			require.Eventually(t, func() bool { return l.Queue().Len() > 0 }, patience, time.Millisecond, "no job waits")
			require.NoError(t, end(t.Context(), c, l, id))
			row := c.awaitState(t, id, rivertype.JobStateAvailable, rivertype.JobStateScheduled, rivertype.JobStateCancelled)
			if name == "the job is cancelled" {
				require.Equal(t, rivertype.JobStateCancelled, row.State)
				require.Len(t, row.Errors, 1)
				require.Contains(t, row.Errors[0].Error, "JobCancelError")
			} else {
				require.Zero(t, row.Attempt)
				require.NotEmpty(t, metadata(t, row)["dripfeed_ticket"])
				require.Empty(t, row.Errors)
			}
		})
	}
}

// A refused call is a failure to River, which runs the job again after a second. The plugin then
// snoozes it until the pause is over. With RetryPolicy, River waits for that long itself: it gives
// the policy the row that Work has changed, and stores no part of that.
func TestPlugin_RefusedCallRetriesAfterThePause(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]river.ClientRetryPolicy{"River's own": nil, "RetryPolicy": riverjobs.RetryPolicy(soon(time.Second))} {
		inDatabase(t, name, func(t *testing.T, d *database) {
			c := d.start(t, &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(100)))}, func(ctx context.Context, _ *river.Job[call]) error {
				outbound.PermitFrom(ctx).Refused(time.Hour)
				return errors.New("429")
			}, func(c *river.Config) { c.RetryPolicy = policy })
			begun := time.Now()
			id := c.add(t, nil)
			var row *rivertype.JobRow
			if policy == nil {
				row = c.awaitSnooze(t, id)
				require.Equal(t, rivertype.JobStateScheduled, row.State)
			} else {
				row = c.awaitState(t, id, rivertype.JobStateRetryable)
			}
			require.InDelta(t, time.Hour.Minutes(), row.ScheduledAt.Sub(begun).Minutes(), 1)
			require.Len(t, row.Errors, 1)
			require.Equal(t, 1, row.Attempt)
			require.NotContains(t, metadata(t, row), "dripfeed_pause")
		})
	}
}

// River makes a job that is snoozed for less than schedulerInterval available before it is due, and
// does not work it before. Only the leader returns a job that is snoozed for longer.
func TestRiver_LeaderReturnsScheduledJobs(t *testing.T) {
	t.Parallel()
	for want, pause := range map[rivertype.JobState]time.Duration{rivertype.JobStateAvailable: time.Second, rivertype.JobStateScheduled: 5500 * time.Millisecond} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			var calls outboundtest.History
			c := newDatabase(t).start(t, nil, func(context.Context, *river.Job[call]) error {
				if calls.Add(time.Now(), 1); calls.Len() == 1 {
					return river.JobSnooze(pause)
				}
				return nil
			})
			id := c.add(t, nil)
			require.Equal(t, want, c.awaitSnooze(t, id).State)
			c.awaitState(t, id, rivertype.JobStateCompleted)
			require.GreaterOrEqual(t, calls.Total().Span(), pause)
		})
	}
}
