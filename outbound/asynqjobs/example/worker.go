package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// workerEnv holds the order in the environment of a worker process.
const workerEnv = "DRIPFEED_EXAMPLE_WORKER"

const (
	rate = 20          // calls per second
	poll = time.Second // how often a process looks for tasks that are due
)

// order is all that a worker has to know.
type order struct{ Redis, Queue, API string }

// newScheduler returns the Scheduler of the API's bucket, which is in Redis.
func newScheduler(rdb *redis.Client, key string) (*jobs.Scheduler, error) {
	bucket, err := outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), key, outbound.PerSecond(rate))
	if err != nil {
		return nil, err
	}
	return jobs.New(bucket, jobs.Config{PollInterval: poll}), nil
}

// work is a worker process, until its input ends. It writes a line for each run of a task.
func work(text string, stdin io.Reader, stdout io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	options, err := redis.ParseURL(o.Redis)
	if err != nil {
		return errNoURL
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	pacer, err := newPacer(rdb, o.Queue)
	if err != nil {
		return err
	}
	mux := asynq.NewServeMux()
	mux.Use(count(stdout), pacer.Middleware)
	mux.HandleFunc("ship", func(ctx context.Context, _ *asynq.Task) error { return call(ctx, o.API) })
	server := asynq.NewServerFromRedisClient(rdb, pacer.Config(asynq.Config{
		Concurrency: 20, Queues: map[string]int{o.Queue: 1}, LogLevel: asynq.ErrorLevel, DelayedTaskCheckInterval: poll,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second }, // of a call that has failed
	}))
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()
	_, err = io.Copy(io.Discard, stdin)
	return err
}

// count writes a line for each run.
func count(to io.Writer) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			if _, err := fmt.Fprintln(to); err != nil {
				return err
			}
			return next.ProcessTask(ctx, t)
		})
	}
}

// call calls the API, and reports a refusal to the permit.
func call(ctx context.Context, api string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, api, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode == http.StatusTooManyRequests {
		outbound.PermitFrom(ctx).Refused(time.Second)
		return fmt.Errorf("the API says %s", res.Status)
	}
	return nil
}
