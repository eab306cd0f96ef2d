package riverjobs_test

import (
	"bytes"
	"context"
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
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

// order is what a worker process works.
type order struct {
	Database, Schema string
	API, Booking     string // URLs: see jobtest.API
	Leads            bool   // it may become the leader
}

const crashRate = 8 // 40 jobs take 5 s: a busy machine reaches most of them long before they are due

// work is a worker process.
func work(o order) error {
	ctx := context.Background()
	opened, err := pgserver.Open(ctx, o.Database, o.Schema)
	if err != nil {
		return err
	}
	defer opened.Close()
	d := &database{opened}
	plugin := &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(crashRate)))}
	bookings := river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
		if !bytes.Contains(job.Metadata, []byte(`"dripfeed_ticket"`)) {
			if err := jobtest.Get(ctx, http.DefaultClient, o.Booking); err != nil {
				return err
			}
		}
		return doInner(ctx)
	})
	c, err := d.newClient(plugin, func(ctx context.Context, _ *river.Job[call]) error {
		return jobtest.Get(ctx, http.DefaultClient, o.API)
	}, func(c *river.Config) {
		c.JobTimeout, c.RescueStuckJobsAfter, c.LeaderElectionDisabled = time.Second, 3*time.Second, !o.Leads
		c.Plugins = []rivertype.Plugin{bookings, plugin}
	})
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	jobtest.Wait()
	return c.StopAndCancel(ctx)
}

// A killed process leaves jobs that run, and jobs that wait in its workers. River rescues all of
// them, and the next process keeps to the limit. Only they may book again: those that had been
// rescheduled have their tickets.
func TestCrash_KilledProcessLosesReservationsOnly(t *testing.T) {
	t.Parallel()
	const n = 40
	d := newDatabase(t)
	api := jobtest.StartAPI(t, &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+slack(crashRate), crashRate)}})
	o := order{d.URL, d.Schema, api.URL, api.Booking, false}
	c := jobtest.Must(d.newClient(nil, nothing))
	c.addMany(t, n)
	kill := jobtest.Start(t, o)
	require.Eventually(t, func() bool {
		return api.Report().Answered >= n/4 && d.count(t, "metadata ? 'dripfeed_ticket'") > 0 // a job was rescheduled
	}, patience, 5*time.Millisecond)
	kill()
	running := d.count(t, "state = 'running'")
	require.NotZero(t, running)
	require.Eventually(t, func() bool {
		return d.count(t, "state = 'running' AND attempted_at > now() - interval '3.1 s'") == 0
	}, patience, 50*time.Millisecond)

	o.Leads = true
	jobtest.Start(t, o)
	d.awaitAll(t, n)
	rescued := d.count(t, "cardinality(errors) > 0")
	require.NotZero(t, rescued)
	require.Equal(t, rescued, d.count(t, "errors[1]->>'error' LIKE '%rescued%' AND cardinality(errors) = 1 AND attempt = 2"))
	require.GreaterOrEqual(t, api.Booked.Load(), int64(n))
	require.LessOrEqual(t, api.Booked.Load(), int64(n+running))
	api.Check(t, n, rescued)
}
