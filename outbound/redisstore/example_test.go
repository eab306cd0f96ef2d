package redisstore_test

import (
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// A worker of a fleet of four. While Redis is away it goes on with a quarter of the
// limit, and the log tells when it is away and when it is back.
func Example_fleet() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	store := &outbound.Fallback{
		Store: redisstore.New(rdb, redisstore.Config{
			Observe: func(e redisstore.Event) { slog.Warn("redis", "event", e.Kind, "error", e.Err) },
		}),
		Share: 1.0 / 4,
		OnSwitch: func(away bool, err error) {
			slog.Warn("the limit is shared", "by redis", !away, "error", err)
		},
	}
	bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(50))
	if err != nil {
		slog.Error("no bucket", "error", err)
		os.Exit(1)
	}
	client := &http.Client{Transport: &transport.Transport{
		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
	}}
	_ = client // every call waits for its turn among those of all four workers
}
