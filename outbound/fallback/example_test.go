package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// redis stands for a store across a network, which is down. redisstore.New makes a real one.
type redis struct{}

func (redis) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("connection refused: %w", store.ErrUnavailable)
}

// One of four processes continues with a quarter of the limit while the store is unavailable, and
// writes a line to the log.
func Example() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	store := &fallback.Store{
		Store: redis{},
		Share: 0.25,
		OnSwitch: func(unavailable bool, err error) {
			if unavailable {
				log.Warn("the store is unavailable, we continue with our share", "error", err)
			} else {
				log.Info("the store is available again")
			}
		},
	}
	bucket, err := outbound.NewSharedBucket(store, "reports", outbound.Limit{Capacity: 40, LeakRate: 4.0 / 3600})
	if err != nil {
		fmt.Println(err)
		return
	}

	_, err = bucket.Acquire(context.Background(), outbound.Cost{1})
	if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
		// The share begins without capacity, so that the switch causes no burst.
		fmt.Println("a quarter of 4 per hour: retry in", full.RetryAfter.Round(time.Minute))
	}
	// Output:
	// level=WARN msg="the store is unavailable, we continue with our share" error="connection refused: store: unavailable"
	// a quarter of 4 per hour: retry in 1h0m0s
}

// withoutTime leaves the time out of a line of the log, so that the output is the same in
// each run.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
