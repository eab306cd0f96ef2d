package redisstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// The exam with a server that stops answering when the exam says so.
func TestTheExamWhereAServerHangs(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	ways := make(map[leak.Store]*redistest.Proxy)
	outboundtest.TestStore(t, func(t *testing.T) leak.Store {
		way := redistest.NewProxy(t, server.Addr())
		rdb := redis.NewClient(&redis.Options{Addr: way.Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		s := redisstore.New(rdb, redisstore.Config{Timeout: 4 * time.Second})
		mu.Lock()
		defer mu.Unlock()
		ways[s] = way
		return s
	}, outboundtest.StoreHooks{Break: func(s leak.Store) (mend func()) {
		mu.Lock()
		defer mu.Unlock()
		way := ways[s]
		way.Set(redistest.Faults{SwallowRequests: 1, Handshakes: true})
		return func() { way.Set(redistest.Faults{}) }
	}})
}
