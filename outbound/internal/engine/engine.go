package engine

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Config configures an engine.
type Config struct {
	// Name begins the texts of the engine's own errors, such as "redisstore".
	Name    string
	Carrier Carrier
	// Timeout is the longest time that an operation takes.
	Timeout time.Duration
	// Nodes finds the nodes of the store. If it is nil, the store has one node.
	Nodes *Nodes
	// Observe is called with each event, in any goroutine, one call after the other. It must not
	// block. If it is nil, the engine reports no events.
	Observe func(store.StoreEvent)
}

// forTrips returns how long the engine makes attempts at a trip. It is a 20th less than Timeout, so
// that the waiting callers learn why the trip failed.
func (c *Config) forTrips() time.Duration { return c.Timeout - c.Timeout/20 }

// Engine is the part of a store above the wire. It is safe for concurrent use. It has goroutines
// during operations only, and forgets a key after 10 minutes without use.
type Engine struct {
	config  Config
	seq     atomic.Int64
	shards  [shardCount]shard
	ops     sync.Pool
	buffers sync.Pool // of *[]store.Charge
	events  events

	serversMu sync.Mutex
	servers   map[string]*server // by address
	ill       atomic.Int64       // number of ill servers
}

// shardCount is the number of pipelines to a node. Each waits for one batch at a time, so the keys
// of one pipeline do not wait for a batch of another.
const shardCount = 4

// shard is a part of the keys, with the trips that are under way for them.
type shard struct {
	*Engine

	// mu protects the fields below, and all fields of the shard's queues and pipelines. Under it
	// serversMu may be taken, and then the lock of events.
	mu     sync.Mutex
	keys   map[string]*keyQueue
	pipes  map[string]*pipeline // by the address of a node
	work   chan work            // to goroutines that are left over
	woken  *pendingOp           // list of the operations whose callers get their answer once the lock is free
	latest *pendingOp           // the last of them
	first  *pendingOp           // list of the operations whose callers wait, in their order
	last   *pendingOp
	clock  *time.Timer // fires when the first of them has waited for too long, or nil
	broom  *time.Timer // fires when it is time to drop unused keys, or nil
	fence  bool        // the result of the last trip of a forgotten key is unknown
	counts counts
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

// shard returns the shard of a bucket's key.
func (e *Engine) shard(key string) *shard {
	return &e.shards[maphash.String(seed, key)%shardCount]
}

// Update implements [store.Store]. It returns ctx's own errors, the errors that the carrier has
// found to be Failed, and those that the carrier's Unavailable makes. The reply to an operation
// that fails says only whether its reports were carried out.
func (e *Engine) Update(ctx context.Context, key string, op *store.Op) (r store.Reply, err error) {
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
				return store.Reply{Reported: w.reported}, err
			}
			<-w.ready
		}
	}
	if err = w.err; err == nil {
		r = *w.reply
		r.Charges = w.charges
	} else {
		r.Reported = w.reported
	}
	if !w.gone { // else other goroutines may still use w
		e.free(w)
	}
	return r, err
}
