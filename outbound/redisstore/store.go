package redisstore

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Config is how a [Store] uses its server. The zero value is ready to use.
type Config struct {
	// Prefix is what all keys begin with, for several programs that share a server. The store uses
	// it in keys only, and as it is: "{…}" in it puts all of them into one slot of a Cluster. If it
	// is empty, it is "dripfeed".
	Prefix string
	// PlainKeys keeps the keys of buckets readable in the server. A byte that is not a letter, a
	// digit or one of "-_.:/@" is written as %XX, and so is the second colon of ":1:". By default
	// the store hashes keys, because a server's slow log and monitor and a client's traces show
	// them, and some keys hold tokens.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails, whatever the client's own
	// settings say. The calls that meet an outage wait for so long. With a fallback.Store around the
	// store they then use its share, so a shorter one is enough: eight round trips to the server, and
	// at least 100 ms on a busy machine. If it is zero or less, it is 1 s.
	Timeout time.Duration
	// Observe is called with each [store.StoreEvent], in any goroutine, one call after the other. It
	// must not block. If it is nil, the store reports no events.
	Observe func(store.StoreEvent)
}

// Store keeps buckets in Redis. It is safe for concurrent use. It has goroutines during operations
// only, and forgets a key after 10 minutes without use.
type Store struct {
	engine  *engine.Engine // nil without a client
	carrier *carrier
}

// errNoClient is the error of a Store without a client.
var errNoClient = errors.New("redisstore: the client is nil")

// New returns a store on a client of yours, which stays yours: to configure, to share and to close.
// It does no I/O. With a nil client each operation fails.
//
// The client's own timeouts have no effect, because operations end by Config.Timeout. The store
// disables the retries of go-redis.
func New(rdb Client, c Config) *Store {
	c.Prefix = cmp.Or(c.Prefix, "dripfeed")
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	s := &Store{carrier: &carrier{rdb: rdb, config: c}}
	if v := reflect.ValueOf(rdb); rdb == nil || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil() {
		return s
	}
	s.carrier.rename()
	s.carrier.cluster, _ = rdb.(clusterClient)
	s.engine = engine.New(engine.Config{Name: "redisstore", Carrier: s.carrier, Timeout: c.Timeout, Nodes: s.carrier.nodes(), Observe: c.Observe})
	return s
}

// Update implements [store.Store]. Its errors are ctx's own, those of the client, and
// [store.ErrUnavailable] while the server does not answer.
func (s *Store) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if s == nil || s.engine == nil {
		return store.Reply{}, errNoClient
	}
	return s.engine.Update(ctx, key, op)
}

// Stats returns what the store has counted, for metrics. It takes about a microsecond, without a
// request.
func (s *Store) Stats() store.StoreStats {
	if s == nil || s.engine == nil {
		return store.StoreStats{}
	}
	return s.engine.Stats()
}

// Key returns the name under which the server keeps a bucket.
func (s *Store) Key(bucket string) string { return s.carrier.config.name(bucket) }
