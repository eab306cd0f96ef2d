package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func TestTheExam(t *testing.T) {
	redistest.Each(t, func(t *testing.T, _ string, rdb redis.UniversalClient) {
		outboundtest.TestStore(t, func(*testing.T) leak.Store {
			return redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}) // the machine may be busy
		})
	})
}
