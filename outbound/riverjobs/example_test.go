package riverjobs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// newClient returns a client whose jobs of one kind are paced.
func newClient(ctx context.Context, url string, workers *river.Workers) (*river.Client[pgx.Tx], error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(6)
	err = pgstore.Migrate(ctx, db, pgstore.Config{}) // db: a *sql.DB of its own, of six connections
	if err != nil {
		return nil, err
	}
	bucket, err := outbound.NewSharedBucket(pgstore.New(db, pgstore.Config{}), "weather", outbound.PerSecond(20))
	if err != nil {
		return nil, err
	}
	weather := jobs.New(bucket, jobs.Config{})
	plugin := &riverjobs.Plugin{AtInsert: true, Limiter: func(kind, queue string, args []byte) (outbound.Limiter, outbound.Cost) {
		if kind == "weather" {
			return weather, outbound.Cost{1}
		}
		return nil, outbound.Cost{} // not paced
	}}
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Plugins:     []rivertype.Plugin{plugin},
		Queues:      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		RetryPolicy: riverjobs.RetryPolicy(nil), // after a 429, not before the pause is over
		Workers:     workers,
	})
}

// Jobs of one kind call an API under a limit of 20 per second, in however many processes.
func Example() {
	ctx := context.Background()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[call]) error {
		return nil // call the API
	}))
	client, err := newClient(ctx, "postgres://localhost/jobs", workers)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := client.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Insert(ctx, call{}, nil)
	fmt.Println(err)
}

// A limit for each tenant. A job names its tenant in its args.
func Example_tenants() {
	tenants := &outbound.Keyed[string]{New: func(id string) (outbound.Limiter, error) {
		bucket, err := outbound.NewBucket(id, outbound.PerMinute(1)) // NewSharedBucket in a fleet
		return jobs.New(bucket, jobs.Config{}), err
	}}
	plugin := &riverjobs.Plugin{AtInsert: true, Limiter: func(_, _ string, args []byte) (outbound.Limiter, outbound.Cost) {
		var job struct{ Tenant string }
		if json.Unmarshal(args, &job) != nil || job.Tenant == "" {
			return nil, outbound.Cost{}
		}
		return tenants.For(job.Tenant), outbound.Cost{1}
	}}

	// What River does when jobs are inserted.
	var jobs []*rivertype.JobInsertParams
	for _, id := range []string{"acme", "acme", "zen"} {
		jobs = append(jobs, &rivertype.JobInsertParams{
			Kind: "sync", EncodedArgs: fmt.Appendf(nil, `{"tenant":%q}`, id),
			Metadata: []byte("{}"), State: rivertype.JobStateAvailable,
		})
	}
	_, err := plugin.InsertMany(context.Background(), jobs, func(context.Context) ([]*rivertype.JobInsertResult, error) { return nil, nil })
	for _, job := range jobs {
		fmt.Println(string(job.EncodedArgs), job.State)
	}
	fmt.Println(err)
	// Output:
	// {"tenant":"acme"} available
	// {"tenant":"acme"} scheduled
	// {"tenant":"zen"} available
	// <nil>
}

// The README shows the code of newClient, which compiles.
func TestReadme_ShowsWhatIsCompiled(t *testing.T) { jobtest.Readme(t) }
