package asynqjobs_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/asynqjobs"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// ship is a task: it calls the API, and reports a refusal to its permit.
func ship(ctx context.Context, _ *asynq.Task) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/shipments", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusTooManyRequests {
		outbound.PermitFrom(ctx).Refused(0)
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status) // else the task would count as done
	}
	return nil
}

// serve runs a server. It is the code of the README.
func serve() error {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	bucket, err := outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "shop", outbound.PerSecond(20))
	if err != nil {
		return err
	}
	scheduler := jobs.New(bucket, jobs.Config{})
	pacer := asynqjobs.New(rdb, func(*asynq.Task) (outbound.Limiter, outbound.Cost) {
		return scheduler, outbound.Cost{1}
	})
	mux := asynq.NewServeMux()
	mux.Use(pacer.Middleware)
	mux.HandleFunc("ship", ship)
	server := asynq.NewServerFromRedisClient(rdb, pacer.Config(asynq.Config{Concurrency: 50}))
	return server.Run(mux)
}

func Example() {
	if err := serve(); err != nil {
		panic(err)
	}
}

// README.md shows the program of the example.
func TestReadme_ShowsTheExample(t *testing.T) { jobtest.Readme(t) }

// Each tenant has its own quota, and its tasks wait for no other tenant.
func ExamplePacer_tenants() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store := redisstore.New(rdb, redisstore.Config{})
	tenants := &outbound.Keyed[string]{New: func(name string) (outbound.Limiter, error) {
		bucket, err := outbound.NewSharedBucket(store, "tenant:"+name, outbound.PerSecond(2))
		if err != nil {
			return nil, err
		}
		return jobs.New(bucket, jobs.Config{}), nil
	}}
	pacer := asynqjobs.New(rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
		return tenants.For(t.Headers()["tenant"]), outbound.Cost{1}
	})
	client := asynq.NewClientFromRedisClient(rdb)
	task := asynq.NewTaskWithHeaders("ship", nil, map[string]string{"tenant": "acme"})
	if _, err := pacer.Enqueue(context.Background(), client, task); err != nil {
		panic(err)
	}
}
