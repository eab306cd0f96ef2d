//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func openBare(addr string) store.Store {
	return redisstore.New(redis.NewClient(&redis.Options{Addr: addr}), redisstore.Config{})
}

// Without a queue a Window holds, too: processes 0.2 to 100 ms away are stopped and killed, and
// replies are lost.
func TestBare_WindowHolds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rollouttest.Bare(t, func(t *testing.T, trip time.Duration) string {
		line := redistest.NewProxy(t, server.Addr())
		line.Set(redistest.Faults{Delay: trip / 2, DelayRequests: trip / 2, DropReplies: 0.005})
		return line.Addr()
	})
}
