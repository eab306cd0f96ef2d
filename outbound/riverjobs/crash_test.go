package riverjobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

// workerEnv holds the order in the environment of a process that is to be a worker.
const workerEnv = "DRIPFEED_RIVERJOBS_WORKER"

// order is what a worker process works.
type order struct {
	URL, Schema, API string
	Leads            bool // it may become the leader
}

const (
	crashRate   = 20
	booking     = "/booking"      // where a worker reports a run without a ticket
	rescueAfter = 3 * time.Second // River's own, for jobs of processes that have died
)

// work is a worker process. It works until its input ends.
func work(text string, stdin io.Reader) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	opened, err := pgserver.Open(ctx, o.URL, o.Schema)
	if err != nil {
		return err
	}
	defer opened.Close()
	d := &database{opened}
	plugin := &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(crashRate)))}
	bookings := river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
		if !bytes.Contains(job.Metadata, []byte(`"dripfeed_ticket"`)) {
			if err := get(ctx, http.DefaultClient, o.API+booking); err != nil {
				return err
			}
		}
		return doInner(ctx)
	})
	c, err := d.newClient(plugin, func(ctx context.Context, _ *river.Job[call]) error {
		return get(ctx, http.DefaultClient, o.API)
	}, func(c *river.Config) {
		c.JobTimeout, c.RescueStuckJobsAfter, c.LeaderElectionDisabled = time.Second, rescueAfter, !o.Leads
		c.Plugins = []rivertype.Plugin{bookings, plugin}
	})
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, stdin)
	return c.StopAndCancel(ctx)
}

// process starts a worker process, and returns what kills it.
func (d *database) process(t *testing.T, api string, leads bool) (kill func()) {
	t.Helper()
	text, err := json.Marshal(order{d.URL, d.Schema, api, leads})
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var said bytes.Buffer
	cmd.Stderr = &said
	_, err = cmd.StdinPipe() // ends with this process
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.Empty(t, said.String())
	})
	t.Cleanup(kill)
	return kill
}

// A killed process leaves jobs that run, and jobs that wait in its workers. River rescues all of
// them, and the next process keeps to the limit. Only they may book again: those that had been
// rescheduled have their tickets.
func TestCrash_KilledProcessLosesReservationsOnly(t *testing.T) {
	t.Parallel()
	const n = 40
	d := newDatabase(t)
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+slack(crashRate), crashRate)}}
	var booked atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc(booking, func(http.ResponseWriter, *http.Request) { booked.Add(1) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c, err := d.newClient(nil, nothing)
	require.NoError(t, err)
	c.addMany(t, n)
	kill := d.process(t, server.URL, false)
	require.Eventually(t, func() bool {
		return api.Report().Answered >= n/4 && d.count(t, "metadata ? 'dripfeed_ticket'") > 0 // a job was rescheduled
	}, patience, 5*time.Millisecond)
	kill()
	running := d.count(t, "state = 'running'")
	require.NotZero(t, running)
	require.Eventually(t, func() bool {
		return d.count(t, "state = 'running' AND attempted_at > now() - interval '3.1 s'") == 0
	}, patience, 50*time.Millisecond)

	d.process(t, server.URL, true)
	d.awaitAll(t, n)
	rescued := d.count(t, "cardinality(errors) > 0")
	require.NotZero(t, rescued)
	require.Equal(t, rescued, d.count(t, "errors[1]->>'error' LIKE '%rescued%' AND cardinality(errors) = 1 AND attempt = 2"))
	require.GreaterOrEqual(t, booked.Load(), int64(n))
	require.LessOrEqual(t, booked.Load(), int64(n+running))
	r := api.Report()
	require.Zero(t, r.Refused)
	require.GreaterOrEqual(t, r.Arrivals, n)
	require.LessOrEqual(t, r.Arrivals, n+rescued) // a job that was killed after its call calls again
}
