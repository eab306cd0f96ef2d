package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Config is how a [Store] uses its server. The zero value works.
type Config struct {
	// Prefix is what all keys begin with, for several programs that share a
	// server. It is used as it is, in keys and nothing else; "{…}" in it makes all
	// of them live in one slot of a Cluster. "": "dripfeed".
	Prefix string
	// PlainKeys keeps the buckets' keys readable in the server. A byte that is not a letter,
	// a digit or one of "-_.:/@" is written as %XX, and so is the second colon of ":1:". By
	// default the store hashes keys, because a server's slow log and monitor and a client's
	// traces show them, and some keys hold tokens.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails, whatever
	// the client's own settings say. The calls that meet an outage wait for so long. With
	// a fallback.Store around the store they then go on with its share, so a shorter one
	// serves: eight round trips to the server, as the package says, and 100 ms at least for
	// a machine that is busy. 0 or less: 1 s.
	Timeout time.Duration
	// Observe is called with each [leak.StoreEvent], in any goroutine, one call after the other. It
	// must not block. nil: the store tells nothing.
	Observe func(leak.StoreEvent)
}

// Store keeps buckets in Redis. It is safe for concurrent use. It has no goroutine while
// nobody asks it anything, forgets a key that nobody has used for 10 minutes, and needs no
// Close.
type Store struct {
	engine  *engine.Engine // nil: the Store has no client
	carrier *carrier
}

// errNoClient is what a Store without a client answers.
var errNoClient = fmt.Errorf("redisstore: %w: client", outbound.ErrNil)

// New returns a store on a client of yours, which stays yours: to configure, to
// share and to close. It does no I/O. A nil client is [outbound.ErrNil] at the
// first use.
//
// The client's own timeouts and retries do not matter: operations end by
// Config.Timeout, and the store tells the client to retry nothing.
func New(rdb redis.UniversalClient, c Config) *Store {
	if c.Prefix == "" {
		c.Prefix = "dripfeed"
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	switch c := rdb.(type) { // a nil pointer is no client, either
	case *redis.Client:
		if c == nil {
			rdb = nil
		}
	case *redis.ClusterClient:
		if c == nil {
			rdb = nil
		}
	}
	if rdb == nil {
		return &Store{carrier: &carrier{config: c}}
	}
	carrier := &carrier{rdb: rdb, config: c}
	carrier.rename()
	config := engine.Config{Carrier: carrier, Timeout: c.Timeout, Nodes: nodes(carrier), Observe: c.Observe}
	return &Store{engine: engine.New(config), carrier: carrier}
}

// Update implements [leak.Store]. Its errors are ctx's own, those of the
// client, and [outbound.ErrAway] while the server does not answer.
func (s *Store) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if s == nil || s.engine == nil {
		return leak.Reply{}, errNoClient
	}
	return s.engine.Update(ctx, key, op)
}

// Stats returns what the store has counted, for metrics. It makes no trip and waits for none: it
// takes about a microsecond.
func (s *Store) Stats() leak.StoreStats {
	if s == nil || s.engine == nil {
		return leak.StoreStats{}
	}
	return s.engine.Stats()
}

// Key returns the name under which the server keeps a bucket.
func (s *Store) Key(bucket string) string { return s.carrier.config.name(bucket) }
