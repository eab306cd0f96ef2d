package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// workerEnv holds the order in the environment of a worker process.
const workerEnv = "DRIPFEED_RIVERJOBS_EXAMPLE"

// order is what a worker works.
type order struct {
	params
	API, DB, Schema string
}

// weather is a job that calls the API.
type weather struct {
	City int `json:"city"`
}

// Kind implements [river.JobArgs].
func (weather) Kind() string { return "weather" }

// other is a job without a call.
type other struct {
	N int `json:"n"`
}

// Kind implements [river.JobArgs].
func (other) Kind() string { return "other" }

// newClient returns River's client of a process. Each process has a Scheduler of its own. They
// share their reservations, because they share a bucket.
func newClient(d *pgserver.Database, o *order) (*river.Client[pgx.Tx], *jobs.Scheduler, error) {
	bucket, err := outbound.NewSharedBucket(pgstore.New(d.Buckets, pgstore.Config{Schema: d.Schema}), "weather", outbound.PerSecond(o.Rate))
	if err != nil {
		return nil, nil, err
	}
	calls := jobs.New(bucket, jobs.Config{})
	plugin := &riverjobs.Plugin{
		AtInsert: o.AtInsert,
		Limiter: func(kind, _ string, _ []byte) (outbound.Limiter, outbound.Cost) {
			if kind == "weather" {
				return calls, outbound.Cost{1}
			}
			return nil, outbound.Cost{}
		},
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[weather]) error { return call(ctx, o.API) }))
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[other]) error { return nil }))
	client, err := river.NewClient(riverpgxv5.New(d.Pool), &river.Config{
		Plugins:              []rivertype.Plugin{plugin},
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: o.Workers}},
		RetryPolicy:          riverjobs.RetryPolicy(nil), // after a 429, not before the pause is over
		JobTimeout:           2 * time.Second,
		RescueStuckJobsAfter: 10 * time.Second, // River's default is an hour
		Schema:               d.Schema,
		Workers:              workers,
	})
	return client, calls, err
}

// call calls the API once.
func call(ctx context.Context, api string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests {
		outbound.PermitFrom(ctx).Refused(0) // all processes pause
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// work is a worker. It works until its input ends.
func work(text string, stdin io.Reader) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	d, err := pgserver.Open(ctx, o.DB, o.Schema)
	if err != nil {
		return err
	}
	defer d.Close()
	client, calls, err := newClient(d, &o)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, stdin)
	_ = calls.Queue().Close() // River gets the jobs that wait; the error is always nil
	return client.Stop(ctx)
}
