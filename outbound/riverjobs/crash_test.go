package riverjobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
)

// workerEnv holds the order in the environment of a process that is to be a worker.
const workerEnv = "DRIPFEED_RIVERJOBS_WORKER"

// order is all that a worker has to know.
type order struct {
	URL, Schema, API string
	Leads            bool // it may become the leader
}

const (
	crashRate   = 20
	booking     = "/booking"      // where a worker tells of a run that brings no ticket
	rescueAfter = 3 * time.Second // River's own, for jobs of processes that have died
)

// work is a worker process. It works until its input ends.
func work(text string, stdin io.Reader) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	d, err := openDatabase(ctx, o.URL, o.Schema)
	if err != nil {
		return err
	}
	defer d.close()
	plugin := &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(crashRate)))}
	c, err := d.newClient(plugin, func(ctx context.Context, _ *river.Job[call]) error {
		res, err := http.Get(o.API)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	}, func(c *river.Config) {
		c.JobTimeout, c.RescueStuckJobsAfter, c.LeaderElectionDisabled = time.Second, rescueAfter, !o.Leads
	}, around(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
		if !bytes.Contains(job.Metadata, []byte(`"dripfeed_ticket"`)) { // then this run books a place
			res, err := http.Get(o.API + booking)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
		}
		return doInner(ctx)
	}))
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, stdin)
	return c.StopAndCancel(ctx)
}

// around puts a middleware around the plugin.
func around(f river.WorkerMiddlewareFunc) func(*river.Config) {
	return func(c *river.Config) { c.Plugins = append([]rivertype.Plugin{f}, c.Plugins...) }
}

// process starts a worker process, and returns what kills it.
func (d *database) process(t *testing.T, api string, leads bool) (kill func()) {
	t.Helper()
	text, err := json.Marshal(order{d.url, d.schema, api, leads})
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
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if said.Len() > 0 {
				t.Errorf("the worker: %s", &said)
			}
		}
	}
	t.Cleanup(kill)
	return kill
}

// A process that is killed has jobs that run, and jobs that wait in its workers. River's rescuer
// brings all of them back, and the other process keeps to the limit. They may book another reservation, and nobody else: those
// that had been rescheduled have their tickets.
func TestCrash_KilledProcessLosesReservationsOnly(t *testing.T) {
	t.Parallel()
	const n = 40
	d := newDatabase(t)
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+slack(crashRate), crashRate)}}
	var booked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == booking {
			booked.Add(1)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c, err := d.newClient(nil, nothing)
	require.NoError(t, err)
	c.addMany(t, n)
	kill := d.process(t, server.URL, false)
	require.Eventually(t, func() bool {
		return api.Report().Answered >= n/4 && d.count(t, "metadata ? 'dripfeed_ticket'") > 0 // a job was rescheduled
	}, patience, 5*time.Millisecond)
	kill()
	with := d.count(t, "state = 'running'")
	require.NotZero(t, with)
	require.Eventually(t, func() bool {
		return d.count(t, "state = 'running' AND attempted_at > now() - interval '3.1 s'") == 0
	}, patience, 50*time.Millisecond)

	d.process(t, server.URL, true)
	d.awaitAll(t, n)
	rescued := d.count(t, "cardinality(errors) > 0")
	require.NotZero(t, rescued)
	require.Equal(t, rescued, d.count(t, "errors[1]->>'error' LIKE '%rescued%' AND cardinality(errors) = 1 AND attempt = 2"))
	t.Logf("%d jobs were with the process, %d places in all", with, booked.Load())
	require.GreaterOrEqual(t, booked.Load(), int64(n))
	require.LessOrEqual(t, booked.Load(), int64(n+with))
	r := api.Report()
	require.Zero(t, r.Refused)
	require.GreaterOrEqual(t, r.Arrivals, n)
	require.LessOrEqual(t, r.Arrivals, n+rescued) // who was killed after the call calls again
}
