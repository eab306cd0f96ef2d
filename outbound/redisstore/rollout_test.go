package redisstore

import (
	"os"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Old and new processes run next to each other, in long runs for a minute.
func TestStore_RolloutOfLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	f := &rollouttest.Fleet{For: 2 * time.Second, Tenants: 100, Open: func(t testing.TB) store.Store {
		return open(t, server.Addr(), Config{Timeout: time.Minute})
	}}
	if os.Getenv("DRIPFEED_LONG") != "" {
		f.For, f.Tenants = time.Minute, 1_000
	}
	f.Test(t)
}
