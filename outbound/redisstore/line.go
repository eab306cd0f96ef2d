package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// shard is a part of the keys, with what is under way for them.
type shard struct {
	store *Store

	mu    sync.Mutex // protects what follows, and all that the lines and lanes hold
	lines map[string]*line
	lanes map[string]*lane // by the address of a Cluster's node; "" otherwise
}

// line is what a Store knows of one key, and the operations that gather while
// others are on their way: of each key there is one request under way at most.
type line struct {
	bucket string // the bucket's key
	name   any    // the server's, a string
	lane   *lane  // nil: not known yet

	pending []*wait
	away    bool  // a request is under way
	queued  bool  // in lane.ready
	fence   bool  // what became of the last request is not known
	heard   int64 // the last request that is known to be on record; -1: not known
	used    time.Time

	header  header
	version int64            // of the limits
	stamp   float64          // what names them and their version
	set     []outbound.Limit // those that were set; nil: each bucket's own count
	refusal refusal
	offset  offset
	differ  time.Time // when it was last told
}

// wait is an operation whose caller waits.
type wait struct {
	op     *outbound.Op // nil: the caller has gone
	line   *line
	ready  chan struct{}
	result *outbound.Result // of all that are answered alike, but for the charges
	booked []outbound.Charge
	err    error
	told   bool // its reports are in a request, and go with that
	gate   bool // one of its request's gates
	place  int  // among those booked; below 0: none
	gone   bool // nobody wants the result
	over   bool // it is there
}

var waits = sync.Pool{New: func() any { return &wait{ready: make(chan struct{}, 1)} }}

func (w *wait) free() {
	*w = wait{ready: w.ready}
	waits.Put(w)
}

// fail lets the caller go with an error.
func (w *wait) fail(err error) {
	if !w.gone {
		w.err = err
		w.ready <- struct{}{}
	}
}

// enter has an operation carried out, or answers it at once: then it returns no wait,
// but an error, or writes the result.
func (sh *shard) enter(key string, op *outbound.Op, r *outbound.Result) (*wait, error) {
	now := time.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ln := sh.line(key, now)
	if ln.refusal.answer(op, now, r) {
		return nil, nil
	}
	if err := ln.lane.refuses(now); err != nil {
		sh.lose(ln, op, err)
		return nil, err
	}
	w := waits.Get().(*wait)
	w.op, w.line = op, ln
	sh.push(ln, w)
	return w, nil
}

func (sh *shard) push(ln *line, w *wait) {
	ln.pending = append(ln.pending, w)
	switch {
	case ln.away || ln.queued:
	case ln.lane == nil:
		ln.queued = true
		go sh.settle(ln)
	default:
		ln.lane.push(ln)
	}
}

// abandon gives up an operation. It reports whether that was in time; what it may
// book all the same is given back.
func (sh *shard) abandon(w *wait) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.over {
		return false
	}
	w.gone, w.op = true, nil
	return true
}

// line returns the line of a key, and makes one if there is none.
func (sh *shard) line(key string, now time.Time) *line {
	ln := sh.lines[key]
	if ln == nil {
		sh.sweep(now)
		ln = &line{bucket: key, name: sh.store.config.name(key), heard: -1}
		if sh.store.cluster == nil {
			ln.lane = sh.lane("")
		}
		sh.lines[key] = ln
	}
	ln.used = now
	return ln
}

// idle is how long a line is kept that nobody uses. Numbers of requests are the
// Store's and not the line's, so that nothing is lost with one.
const idle = time.Minute

// sweep looks at a few lines and drops the idle ones, which keeps up with new ones.
func (sh *shard) sweep(now time.Time) {
	looked := 0
	for key, ln := range sh.lines {
		if !ln.away && !ln.queued && len(ln.pending) == 0 && now.Sub(ln.used) > idle {
			delete(sh.lines, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

func (sh *shard) lane(node string) *lane {
	la := sh.lanes[node]
	if la == nil {
		la = &lane{shard: sh}
		sh.lanes[node] = la
	}
	return la
}

// settle finds the lane of a line in a Cluster: that of the node that has the key.
func (sh *shard) settle(ln *line) {
	ctx, cancel := context.WithTimeout(context.Background(), sh.store.config.Timeout)
	node := ""
	if c, err := sh.store.cluster.MasterForKey(ctx, ln.name.(string)); err == nil {
		node = c.Options().Addr
	}
	cancel()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ln.queued = false
	ln.lane = sh.lane(node)
	if err := ln.lane.refuses(time.Now()); err != nil {
		sh.fail(ln, err)
		return
	}
	ln.lane.push(ln)
}

// fail answers all that gather in a line.
func (sh *shard) fail(ln *line, err error) {
	for _, w := range ln.pending {
		if w.op != nil {
			sh.lose(ln, w.op, err)
		}
		w.over = true
		w.fail(err)
	}
	ln.pending = nil
}

// lose tells of the reports that are lost with an operation.
func (sh *shard) lose(ln *line, op *outbound.Op, err error) {
	if len(op.Reports) > 0 && sh.store.config.Observe != nil {
		go sh.store.tell(EventLost, ln.bucket, err) // not with the lock held
	}
}
