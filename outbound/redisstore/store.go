package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Config is how a [Store] uses its server. The zero value works.
type Config struct {
	// Prefix is what all keys begin with, for several programs that share a
	// server. It is used as it is, in keys and nothing else; "{…}" in it makes all
	// of them live in one slot of a Cluster. "": "dripfeed".
	Prefix string
	// PlainKeys keeps the buckets' keys readable in the server, with what is
	// not a letter, a digit or one of "-_.:/@" written as %XX, and so the second colon of
	// ":1:". By default they are
	// hashed, because whoever can read the server's slow log or monitor it, or a
	// client's traces, reads keys as well, and some have tokens in them.
	PlainKeys bool
	// Timeout is the longest that an operation takes before it fails, whatever
	// the client's own settings say. Each outage costs the calls that meet it so much. With
	// a fallback.Store around the store they go on with its share then, and so a
	// shorter one does: eight round trips to the server, as the package says, and 100 ms
	// at least for a machine that is busy. 0 or less: 1 s.
	Timeout time.Duration
	// Observe is called with what no call returns, in any goroutine, one call after
	// the other. It must not block. nil: nothing is told.
	Observe func(Event)
}

// forTrips is how long trips are made: then the time is up for those who wait, and
// all of them are to hear why.
func (c *Config) forTrips() time.Duration { return c.Timeout - c.Timeout/20 }

// Store keeps buckets in Redis. It is safe for concurrent use; it has no
// goroutine while nothing is asked of it, forgets a key that was not used for 10
// minutes, and needs no Close.
type Store struct {
	rdb     redis.UniversalClient
	config  Config
	cluster reloader     // nil: not a Cluster
	seeks   bool         // its replicas say that they are none, and so may be asked
	worker  atomic.Value // this Store's field in the buckets' hashes, a string
	seq     atomic.Int64
	shards  [shardCount]shard
	waits   sync.Pool
	news    news
	mu      sync.Mutex         // protects servers
	servers map[string]*server // by address, as the lanes
	ill     atomic.Int64       // how many of them are
}

// reloader is what a Cluster's client can do.
type reloader interface {
	ReloadState(context.Context)
	MasterForKey(context.Context, string) (*redis.Client, error)
	SlaveForKey(context.Context, string) (*redis.Client, error)
	Options() *redis.ClusterOptions
}

// shardCount is the number of lanes to a server: each has at most one pipeline
// under way, so that those of other keys do not wait for it.
const shardCount = 4

// errNoClient is what a Store without a client answers.
var errNoClient = fmt.Errorf("redisstore: %w: client", outbound.ErrNil)

// New returns a store on a client of yours, which stays yours: to configure, to
// share and to close. It does no I/O. A nil client is [outbound.ErrNil] at the
// first use.
//
// The client's own timeouts and retries do not matter: operations end by
// Config.Timeout, and the client is told to leave retries to the store.
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
	s := &Store{rdb: rdb, config: c, servers: make(map[string]*server)}
	s.rename()
	if s.cluster, _ = rdb.(reloader); s.cluster != nil {
		o := s.cluster.Options()
		s.seeks = !o.ReadOnly && o.ClusterSlots == nil
	}
	for i := range s.shards {
		s.shards[i].store = s
		s.shards[i].lines = make(map[string]*line)
		s.shards[i].lanes = make(map[string]*lane)
	}
	return s
}

// rename gives the Store another field in the hashes. It begins with no record there.
func (s *Store) rename() {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	s.worker.Store("w" + string(id[:]))
}

// Update implements [leak.Store]. Its errors are ctx's own, those of the
// client, and [outbound.ErrAway] while the server does not answer.
func (s *Store) Update(ctx context.Context, key string, op *leak.Op) (r leak.Reply, err error) {
	if s == nil || s.rdb == nil {
		return r, errNoClient
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	sh := s.shard(key)
	w, err := sh.enter(key, op, &r)
	if w == nil {
		return r, err
	}
	if done := ctx.Done(); done == nil {
		<-w.ready
	} else {
		select {
		case <-w.ready:
		case <-done:
			if err := ctx.Err(); sh.abandon(w, err) {
				return r, err
			}
			<-w.ready
		}
	}
	if w.lapsed { // others may still have it in their hands
		return r, w.err
	}
	if err = w.err; err == nil {
		r = *w.result
		r.Charges = w.booked
	}
	s.free(w)
	return r, err
}

// Key returns the name under which the server keeps a bucket.
func (s *Store) Key(bucket string) string { return s.config.name(bucket) }

// awayError is outbound.ErrAway with its cause.
type awayError struct{ cause error }

// silent is the error of a server that has not answered in time.
func (s *Store) silent() error { return fmt.Errorf("no answer within %v", s.config.Timeout) }

func (e *awayError) Error() string {
	if errors.Is(e.cause, redis.ErrPoolTimeout) || errors.Is(e.cause, redis.ErrPoolExhausted) {
		return "redisstore: the client has no connection left, as PoolSize allows: " + e.cause.Error()
	}
	return "redisstore: the server is away: " + e.cause.Error()
}

func (e *awayError) Is(target error) bool { return target == outbound.ErrAway }
func (e *awayError) Unwrap() error        { return e.cause }
