package redisstore

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// shard is a part of the keys, with what is under way for them.
type shard struct {
	store *Store

	mu    sync.Mutex // protects what follows, and all that the lines and lanes hold
	lines map[string]*line
	lanes map[string]*lane // by the address of a Cluster's node; "": of the keys whose node is not known
	first *wait            // of those whose callers wait, in their order
	last  *wait
	clock *time.Timer // until the first has waited for too long; nil: nobody waits
	broom *time.Timer // until lines are dropped that nobody uses; nil: there is none
}

// line is what a Store knows of one key, and the operations that gather while
// others are on their way: of each key there is one request under way at most.
type line struct {
	bucket string // the bucket's key
	name   any    // the server's, a string
	lane   *lane

	pending []*wait
	away    bool  // a request is under way
	queued  bool  // in lane.ready
	fence   bool  // what became of the last request is not known
	heard   int64 // the last request that is known to be on record; -1: not known
	used    time.Time

	header   header
	badStamp float64 // of limits that were set and cannot be read; 0: there are none
	refusal  refusal
	offset   offset
	differ   time.Time // when it was last told
	memory
}

// wait is an operation whose caller waits.
type wait struct {
	op       *leak.Op // nil: the caller has gone
	line     *line
	ready    chan struct{}
	result   *leak.Reply // of all that are answered alike, but for the charges
	booked   []leak.Charge
	err      error
	until    time.Time // when its caller has waited for too long
	before   *wait     // in the shard's list
	after    *wait
	lapsed   bool // that time has come
	tells    bool // it has reports
	told     bool // they are in a request, and go with that
	reported bool // they went with a request before the one under way
	gate     bool // one of its request's gates
	place    int  // among those booked; below 0: none
	gone     bool // nobody wants the result
	over     bool // it is there
}

// free lets a wait be used again, by the same Store: in a testing bubble, its channel
// belongs to that.
func (s *Store) free(w *wait) {
	*w = wait{ready: w.ready}
	s.waits.Put(w)
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
func (sh *shard) enter(key string, op *leak.Op, r *leak.Reply) (*wait, error) {
	now := time.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ln := sh.line(key, now)
	if ln.refusal.answer(op, now, r) {
		return nil, nil
	}
	if err := ln.lane.refuses(now); err != nil {
		if len(op.Reports) > 0 {
			sh.lose(ln, err)
		}
		if ln.lane.hangs(now) {
			sh.probe(ln, op)
		}
		return nil, err
	}
	w, _ := sh.store.waits.Get().(*wait)
	if w == nil {
		w = &wait{ready: make(chan struct{}, 1)}
	}
	w.op, w.line, w.tells = op, ln, len(op.Reports) > 0
	sh.list(w, now)
	sh.push(ln, w)
	return w, nil
}

// probe asks something of the server that nobody waits for.
func (sh *shard) probe(ln *line, op *leak.Op) {
	sh.push(ln, &wait{op: &leak.Op{Limits: op.Limits, Stamp: op.Stamp}, line: ln, gone: true})
}

func (sh *shard) push(ln *line, w *wait) {
	ln.pending = append(ln.pending, w)
	if !ln.away && !ln.queued {
		ln.lane.push(ln)
	}
}

// abandon gives up an operation. It reports whether that was in time; what it may
// book all the same is given back.
func (sh *shard) abandon(w *wait, err error) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.over || w.lapsed {
		return false
	}
	sh.drop(w, err)
	return true
}

// drop lets an operation be nobody's. The shard's lock is held.
func (sh *shard) drop(w *wait, err error) {
	sh.unlist(w)
	w.gone, w.op = true, nil
	if w.tells && !w.told {
		sh.lose(w.line, err)
	}
}

// line returns the line of a key, and makes one if there is none.
func (sh *shard) line(key string, now time.Time) *line {
	ln := sh.lines[key]
	if ln == nil {
		sh.sweep(now)
		ln = &line{bucket: key, name: sh.store.config.name(key), heard: -1, lane: sh.lane("")}
		sh.lines[key] = ln
		if sh.broom == nil {
			sh.broom = time.AfterFunc(unused, sh.clear)
		}
	}
	ln.used = now
	return ln
}

// A line that nobody uses is kept for so long, while others come and while none do.
// Numbers of requests are the Store's and not the line's, so that nothing is charged
// twice; what calls from before would give back is lost.
const (
	idle   = time.Minute
	unused = 10 * time.Minute
)

// idles reports whether nobody has used a line for so long.
func (ln *line) idles(d time.Duration, now time.Time) bool {
	return !ln.away && !ln.queued && len(ln.pending) == 0 && now.Sub(ln.used) > d
}

// clear drops the lines that nobody uses, and comes again while there are others.
func (sh *shard) clear() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for key, ln := range sh.lines {
		if ln.idles(unused, now) {
			delete(sh.lines, key)
		}
	}
	if len(sh.lines) > 0 {
		sh.broom.Reset(unused)
		return
	}
	sh.lines = make(map[string]*line) // one that was large stays so
	sh.broom = nil
}

// sweep looks at a few lines and drops the idle ones, which keeps up with new ones.
func (sh *shard) sweep(now time.Time) {
	looked := 0
	for key, ln := range sh.lines {
		if ln.idles(idle, now) {
			delete(sh.lines, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

// fail answers all that gather in a line.
func (sh *shard) fail(ln *line, err error) {
	for _, w := range ln.pending {
		if w.tells && !w.gone {
			sh.lose(ln, err)
		}
		sh.end(w)
		w.fail(err)
	}
	ln.pending = nil
}

// lose tells of the reports that are lost with an operation.
func (sh *shard) lose(ln *line, err error) {
	sh.store.tell(EventLost, ln.bucket, err)
}
