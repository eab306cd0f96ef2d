package riverjobs_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// patience bounds every wait that normally takes seconds.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	jobtest.Worker(work)
	flag.Parse()
	_ = flag.Set("test.parallel", "12") // the tests wait, most of the time
	code := m.Run()
	stopServer()
	os.Exit(code)
}

var stopServer = func() {}

// startServer starts the server of all tests.
var startServer = sync.OnceValues(func() (*pgserver.Server, error) {
	s, err := pgserver.Start(context.Background())
	if err == nil {
		stopServer = s.Stop
	}
	return s, err
})

// database is a schema of one test, with River's tables and the buckets.
type database struct{ *pgserver.Database }

func newDatabase(t testing.TB) *database {
	t.Helper()
	if err := pgserver.Installed(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	s := jobtest.Must(startServer())
	d := openDatabase(t, s.URL+"&pool_max_conns=8", fmt.Sprintf("test_%x", rand.Uint64()))
	require.NoError(t, d.Create(t.Context()))
	return d
}

// inDatabase runs a scenario in a database of its own, next to the others.
func inDatabase(t *testing.T, name string, scenario func(t *testing.T, d *database)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		scenario(t, newDatabase(t))
	})
}

// openDatabase connects one process to a database.
func openDatabase(t testing.TB, url, schema string) *database {
	t.Helper()
	d := jobtest.Must(pgserver.Open(context.Background(), url, schema))
	t.Cleanup(d.Close)
	return &database{d}
}

// bucket is the bucket of one process. Its Timeout is that of a busy machine.
func (d *database) bucket(l outbound.Limit) *outbound.Bucket {
	s := pgstore.New(d.Buckets, pgstore.Config{Schema: d.Schema, Timeout: 10 * time.Second})
	return outbound.Must(outbound.NewSharedBucket(s, "k", l))
}

// scheduler is the Scheduler of one process. A job waits in its worker for up to a minute, so that
// a busy machine does not reschedule it once more.
func (d *database) scheduler(l outbound.Limit) *jobs.Scheduler {
	return jobs.New(d.bucket(l), jobs.Config{PollInterval: time.Minute})
}

// one paces every job by a limiter, at a cost of 1.
func one(l outbound.Limiter) func(string, string, []byte) (outbound.Limiter, outbound.Cost) {
	return func(string, string, []byte) (outbound.Limiter, outbound.Cost) { return l, outbound.Cost{1} }
}

// call is a job.
type call struct{}

func (call) Kind() string { return "call" }

func nothing(context.Context, *river.Job[call]) error { return nil }

var silent = slog.New(slog.DiscardHandler)

// client is one process.
type client struct {
	*river.Client[pgx.Tx]
	snoozed <-chan *river.Event
}

// newClient returns a client that works jobs by f, and has not been started.
func (d *database) newClient(plugin *riverjobs.Plugin, f func(context.Context, *river.Job[call]) error, options ...func(*river.Config)) (*client, error) {
	c := new(client)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(f))
	config := &river.Config{
		FetchCooldown:     20 * time.Millisecond,
		FetchPollInterval: 100 * time.Millisecond,
		Logger:            silent,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}},
		Schema:            d.Schema,
		TestOnly:          true, // a leader begins its work immediately, and not after a random time
		Workers:           workers,
	}
	if plugin != nil {
		config.Plugins = []rivertype.Plugin{plugin}
	}
	for _, o := range options {
		o(config)
	}
	var err error
	if c.Client, err = river.NewClient(riverpgxv5.New(d.Pool), config); err == nil {
		c.snoozed, _ = c.Subscribe(river.EventKindJobSnoozed)
	}
	return c, err
}

// start starts a client that stops with the test.
func (d *database) start(t testing.TB, plugin *riverjobs.Plugin, f func(context.Context, *river.Job[call]) error, options ...func(*river.Config)) *client {
	t.Helper()
	c := jobtest.Must(d.newClient(plugin, f, options...))
	require.NoError(t, c.Start(context.Background())) // the test's ctx is done before the cleanup
	t.Cleanup(func() { c.end(t) })
	return c
}

// end stops the client as a deadline does.
func (c *client) end(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, c.StopAndCancel(ctx))
}

// add inserts a job.
func (c *client) add(t testing.TB, opts *river.InsertOpts) int64 {
	return jobtest.Must(c.Insert(t.Context(), call{}, opts)).Job.ID
}

// addMany inserts n jobs together.
func (c *client) addMany(t testing.TB, n int) {
	jobtest.Must(c.InsertMany(t.Context(), slices.Repeat([]river.InsertManyParams{{Args: call{}}}, n)))
}

// awaitState waits until a job is in one of some states, and returns it.
func (c *client) awaitState(t testing.TB, id int64, in ...rivertype.JobState) (row *rivertype.JobRow) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		row, err = c.JobGet(context.Background(), id)
		return err == nil && slices.Contains(in, row.State)
	}, patience, 10*time.Millisecond, "the job is never %s", in)
	return row
}

// awaitSnooze waits until a job is rescheduled, and returns it as it was then.
func (c *client) awaitSnooze(t testing.TB, id int64) *rivertype.JobRow {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case e := <-c.snoozed:
			if e.Job.ID == id {
				return e.Job
			}
		case <-deadline:
			require.Fail(t, "the job is never snoozed")
		}
	}
}

// metadata returns the metadata of a job.
func metadata(t testing.TB, j *rivertype.JobRow) (m map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(j.Metadata, &m))
	return m
}

// query reads values in SQL from all jobs.
func (d *database) query(t testing.TB, values string, into ...any) {
	t.Helper()
	require.NoError(t, d.Pool.QueryRow(t.Context(), "SELECT "+values+" FROM "+d.Schema+".river_job").Scan(into...))
}

// runsInSQL is the sum or the average of the runs of jobs that have a limit.
func runsInSQL(aggregate string) string {
	return aggregate + "(attempt + coalesce((metadata->>'snoozes')::int, 0)) FILTER (WHERE kind = 'call')"
}

// count returns how many jobs match a condition in SQL.
func (d *database) count(t testing.TB, where string) (n int) {
	t.Helper()
	d.query(t, "count(*) FILTER (WHERE "+where+")", &n)
	return n
}

// awaitAll waits until n jobs are completed, and fails if one has failed.
func (d *database) awaitAll(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return d.count(t, "finalized_at IS NOT NULL") >= n }, patience, 20*time.Millisecond)
	require.Equal(t, n, d.count(t, "state = 'completed'"))
}
