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

// A process of a fleet of four. While Redis is unavailable it goes on with a quarter of the limit.
// The log says when Redis is unavailable, and when it is available again.
func Example_fleet() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	shared := &fallback.Store{
		Store: redisstore.New(rdb, redisstore.Config{
			Observe: func(e store.StoreEvent) { slog.Warn("redis", "event", e.Kind, "error", e.Err) },
		}),
		Share: 1.0 / 4,
		OnSwitch: func(away bool, err error) {
			slog.Warn("the limit is shared", "by redis", !away, "error", err)
		},
	}
	bucket, err := outbound.NewSharedBucket(shared, "weather", outbound.PerSecond(50))
	if err != nil {
		slog.Error("no bucket", "error", err)
		return
	}
	client := &http.Client{Transport: &transport.Transport{
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
	}}
	_ = client // every call waits until the limit of all four processes admits it
}
