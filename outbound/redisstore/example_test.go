package redisstore_test

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// newWorker returns the client of one of four workers. While Redis is away the worker
// goes on with a quarter of the limit. The log tells when Redis is away and when it
// is back.
func newWorker(rdb *redis.Client, log *slog.Logger) (*http.Client, error) {
	store := &fallback.Store{
		Store: redisstore.New(rdb, redisstore.Config{
			Observe: func(e store.StoreEvent) { log.Warn("redis", "event", e.Kind, "error", e.Err) },
		}),
		Share: 1.0 / 4,
		OnSwitch: func(away bool, err error) {
			log.Warn("the limit is shared", "by redis", !away, "error", err)
		},
	}
	bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(50))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &transport.Transport{
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
	}}, nil
}

// A worker of a fleet of four.
func Example_fleet() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	client, err := newWorker(rdb, slog.Default())
	if err != nil {
		slog.Error("no worker", "error", err)
		return
	}
	_ = client // every call waits for its turn among those of all four workers
}
