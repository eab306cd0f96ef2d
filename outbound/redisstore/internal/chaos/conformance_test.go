//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestConformance_Sentinel(t *testing.T) {
	client := redistest.StartSentinel(t).Client(t)
	outboundtest.TestStore(t, func(*testing.T) store.Store {
		return redisstore.New(client, redisstore.Config{Timeout: time.Minute})
	})
}
