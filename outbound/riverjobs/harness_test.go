package riverjobs_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// patience bounds every wait that normally takes seconds.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if err := work(text, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "12") // the tests wait, most of the time
	code := m.Run()
	if asked.Load() {
		if s, err := theServer(); err == nil {
			s.Stop()
		}
	}
	os.Exit(code)
}

var asked atomic.Bool

// theServer is the server of all tests.
var theServer = sync.OnceValues(func() (*pgserver.Server, error) {
	return pgserver.Start(context.Background())
})

// database is a schema of one test, with River's tables and the buckets.
type database struct {
	url, schema string
	pool        *pgxpool.Pool
	buckets     *sql.DB // of the store: River's pool may be used up while a job waits for a bucket
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	if err := pgserver.Installed(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	asked.Store(true)
	s, err := theServer()
	require.NoError(t, err)
	d, err := openDatabase(t.Context(), s.URL, fmt.Sprintf("test_%x", rand.Uint64()))
	require.NoError(t, err)
	t.Cleanup(d.close)
	_, err = d.pool.Exec(t.Context(), "CREATE SCHEMA "+d.schema)
	require.NoError(t, err)
	migrator, err := rivermigrate.New(riverpgxv5.New(d.pool), &rivermigrate.Config{Schema: d.schema, Logger: silent})
	require.NoError(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)
	require.NoError(t, pgstore.Migrate(t.Context(), d.buckets, pgstore.Config{Schema: d.schema}))
	return d
}

func openDatabase(ctx context.Context, url, schema string) (*database, error) {
	d := &database{url: url, schema: schema}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	d.buckets = stdlib.OpenDB(*config.ConnConfig)
	d.buckets.SetMaxOpenConns(6)
	return d, nil
}

func (d *database) close() {
	d.pool.Close()
	_ = d.buckets.Close()
}

// store is the store of one process. Its Timeout is that of a busy machine.
func (d *database) store() store.Store {
	return pgstore.New(d.buckets, pgstore.Config{Schema: d.schema, Timeout: 10 * time.Second})
}

// scheduler is the Scheduler of one process. Who comes when it is nearly its turn waits for however long that takes,
// so that no delay of a busy machine puts a job back once more.
func (d *database) scheduler(limits ...outbound.Limit) *jobs.Scheduler {
	return schedulerOf(d.store(), limits...)
}

func schedulerOf(s store.Store, limits ...outbound.Limit) *jobs.Scheduler {
	return jobs.New(outbound.Must(outbound.NewSharedBucket(s, "k", limits...)), jobs.Config{PollInterval: time.Minute})
}

// one paces every job by a limiter, at a cost of 1.
func one(l outbound.Limiter) func(string, string, []byte) (outbound.Limiter, outbound.Cost) {
	return func(string, string, []byte) (outbound.Limiter, outbound.Cost) { return l, outbound.Cost{1} }
}

// call is a job.
type call struct {
	N int `json:"n"`
}

func (call) Kind() string { return "call" }

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// handler counts what River reports of failures.
type handler struct{ calls atomic.Int64 }

func (h *handler) HandleError(context.Context, *rivertype.JobRow, error) *river.ErrorHandlerResult {
	h.calls.Add(1)
	return nil
}

func (h *handler) HandlePanic(context.Context, *rivertype.JobRow, any, string) *river.ErrorHandlerResult {
	h.calls.Add(1)
	return nil
}

// client is one process.
type client struct {
	*river.Client[pgx.Tx]
	failures handler
	runs     atomic.Int64 // jobs that workers have taken, whether they were rescheduled or not
	snoozed  <-chan *river.Event
}

// newClient returns a client that works jobs by f, and has not been started.
func (d *database) newClient(plugin *riverjobs.Plugin, f func(context.Context, *river.Job[call]) error, options ...func(*river.Config)) (*client, error) {
	c := new(client)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(f))
	config := &river.Config{
		ErrorHandler:      &c.failures,
		FetchCooldown:     20 * time.Millisecond,
		FetchPollInterval: 100 * time.Millisecond,
		Logger:            silent,
		Plugins: []rivertype.Plugin{river.WorkerMiddlewareFunc(func(ctx context.Context, _ *rivertype.JobRow, doInner func(context.Context) error) error {
			c.runs.Add(1)
			return doInner(ctx)
		})},
		Queues:   map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}},
		Schema:   d.schema,
		TestOnly: true, // starts what a leader does at once, and not after a random time
		Workers:  workers,
	}
	if plugin != nil {
		config.Plugins = append(config.Plugins, plugin)
	}
	for _, o := range options {
		o(config)
	}
	var err error
	if c.Client, err = river.NewClient(riverpgxv5.New(d.pool), config); err == nil {
		c.snoozed, _ = c.Subscribe(river.EventKindJobSnoozed)
	}
	return c, err
}

// start starts a client that stops with the test.
func (d *database) start(t testing.TB, plugin *riverjobs.Plugin, f func(context.Context, *river.Job[call]) error, options ...func(*river.Config)) *client {
	t.Helper()
	c, err := d.newClient(plugin, f, options...)
	require.NoError(t, err)
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

// middleware is an option: it is around each job.
func middleware(f river.WorkerMiddlewareFunc) func(*river.Config) {
	return func(c *river.Config) { c.Plugins = append(c.Plugins, f) }
}

// add inserts a job.
func (c *client) add(t testing.TB, n int, opts *river.InsertOpts) int64 {
	t.Helper()
	r, err := c.Insert(t.Context(), call{n}, opts)
	require.NoError(t, err)
	return r.Job.ID
}

// addMany inserts n jobs at once.
func (c *client) addMany(t testing.TB, n int) {
	t.Helper()
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = call{i}
	}
	_, err := c.InsertMany(t.Context(), params)
	require.NoError(t, err)
}

// job returns a job as it stands in the database.
func (c *client) job(t testing.TB, id int64) *rivertype.JobRow {
	t.Helper()
	row, err := c.JobGet(t.Context(), id)
	require.NoError(t, err)
	return row
}

// awaitState waits until a job is in a state.
func (c *client) awaitState(t testing.TB, id int64, s rivertype.JobState) *rivertype.JobRow {
	t.Helper()
	require.Eventually(t, func() bool { return c.job(t, id).State == s }, patience, 10*time.Millisecond, "the job is never %s", s)
	return c.job(t, id)
}

// awaitBack waits until a job is rescheduled, and returns it as it was then.
func (c *client) awaitBack(t testing.TB, id int64) *rivertype.JobRow {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case e := <-c.snoozed:
			if e.Job.ID == id {
				return e.Job
			}
		case <-deadline:
			require.Fail(t, "the job is never put back")
		}
	}
}

// count returns how many jobs match a condition in SQL.
func (d *database) count(t testing.TB, where string) (n int) {
	t.Helper()
	require.NoError(t, d.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+d.schema+".river_job WHERE "+where).Scan(&n))
	return n
}

// awaitAll waits until n jobs are completed, and fails if one has failed.
func (d *database) awaitAll(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return d.count(t, "finalized_at IS NOT NULL") >= n }, patience, 20*time.Millisecond)
	require.Equal(t, n, d.count(t, "state = 'completed'"))
}
