package engine

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Config is what an engine is made with.
type Config struct {
	Carrier Carrier
	// Timeout is the longest that an operation takes.
	Timeout time.Duration
	// Nodes finds the nodes of the store; nil: it has one.
	Nodes *Nodes
	// Observe is called with what no call returns, in any goroutine, one call after the
	// other. It must not block. nil: nothing is told.
	Observe func(Event)
}

// forTrips is how long attempts at a trip are made: then the time is up for those who wait,
// and all of them are to hear why.
func (c *Config) forTrips() time.Duration { return c.Timeout - c.Timeout/20 }

// silent is the cause of an outage in which the store has said nothing.
func (c *Config) silent() error { return fmt.Errorf("no answer within %v", c.Timeout) }

// Engine is the part of a store that lies above the wire. It is safe for concurrent use; it
// has no goroutine while nothing is asked of it, forgets a key that was not used for 10
// minutes, and needs no Close.
type Engine struct {
	config  Config
	seq     atomic.Int64
	shards  [shardCount]shard
	ops     sync.Pool
	buffers sync.Pool // of *[]leak.Charge
	events  events

	serversMu sync.Mutex
	servers   map[string]*server // by address
	ill       atomic.Int64       // how many of them are
}

// shardCount is the number of pipelines to a node: each has one batch under way at most,
// so that those of other keys do not wait for it.
const shardCount = 4

// shard is a part of the keys, with what is under way for them.
type shard struct {
	*Engine

	mu    sync.Mutex // protects what follows, and all that the queues and pipelines hold
	keys  map[string]*keyQueue
	pipes map[string]*pipeline // by the address of a node; "": of the keys whose node is not known
	first *pendingOp           // of those whose callers wait, in their order
	last  *pendingOp
	clock *time.Timer // until the first has waited for too long; nil: nobody waits
	broom *time.Timer // until keys are dropped that nobody uses; nil: there are none
}

// New returns an engine. It does no I/O.
func New(c Config) *Engine {
	e := &Engine{config: c, servers: make(map[string]*server)}
	for i := range e.shards {
		e.shards[i].Engine = e
		e.shards[i].keys = make(map[string]*keyQueue)
		e.shards[i].pipes = make(map[string]*pipeline)
	}
	return e
}

var seed = maphash.MakeSeed()

// shard returns where a bucket's key is.
func (e *Engine) shard(key string) *shard {
	return &e.shards[maphash.String(seed, key)%shardCount]
}

// Update is a store's [leak.Store.Update]. Its errors are ctx's own, those that the carrier
// has found to be Failed, and those of Away.
func (e *Engine) Update(ctx context.Context, key string, op *leak.Op) (r leak.Reply, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	sh := e.shard(key)
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
		r = *w.reply
		r.Charges = w.charges
	}
	e.free(w)
	return r, err
}
