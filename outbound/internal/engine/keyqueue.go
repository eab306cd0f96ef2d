package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// keyQueue holds the engine's knowledge of one key, and the operations that gather while a trip is
// under way.
type keyQueue struct {
	Key
	pipe    *pipeline
	pending []*pendingOp
	trip    *Trip // that waits to be sent again; nil: the next trip is a new one
	busy    bool  // a trip is under way, or waits to be sent again
	queued  bool  // in pipe.ready
	fence   bool  // it is unknown what became of the last trip
	cause   error // why the latest attempt that asked the store has no answer; nil: it has one
	caused  time.Time
	used    time.Time

	refusal refusal
	offset  clockOffset
	record  record
}

// enter queues an operation, or answers it without a trip. If it answers, it returns no pendingOp:
// it returns an error, or writes the reply.
func (sh *shard) enter(key string, op *store.Op, r *store.Reply) (*pendingOp, error) {
	now := time.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := sh.key(key, now)
	if q.refusal.answer(op, now, r) {
		sh.counts.remembered++
		return nil, nil
	}
	if err := q.pipe.refuses(now); err != nil {
		sh.counts.failed++
		if len(op.Reports) > 0 {
			sh.lose(q, err)
		}
		if q.pipe.hangs(now) {
			look := like(op) // no caller waits for it
			sh.pushOwn(q, &look)
		}
		return nil, err
	}
	w, _ := sh.ops.Get().(*pendingOp)
	if w == nil {
		w = &pendingOp{ready: make(chan struct{}, 1)}
	}
	w.op, w.queue, w.reports = op, q, len(op.Reports) > 0
	sh.list(w, now)
	sh.push(q, w)
	return w, nil
}

// pushOwn queues an operation of the engine's own, for which no caller waits.
func (sh *shard) pushOwn(q *keyQueue, op *store.Op) {
	sh.push(q, &pendingOp{op: op, queue: q, until: time.Now().Add(sh.config.Timeout), gone: true})
}

func (sh *shard) push(q *keyQueue, w *pendingOp) {
	q.pending = append(q.pending, w)
	if !q.busy && !q.queued {
		q.pipe.push(q)
	}
}

// arrived notes that a trip of a key has ended, and lets the next one go.
func (sh *shard) arrived(q *keyQueue) {
	q.busy, q.trip = false, nil
	if len(q.pending) > 0 && !q.queued {
		q.pipe.push(q)
	}
}

// reason returns why a key has no answer. It returns nil if that is unknown, or is so long ago that
// the server has fallen silent since.
func (sh *shard) reason(q *keyQueue, now time.Time) error {
	if now.Sub(q.caused) > sh.config.Timeout/4*3 {
		return nil
	}
	return q.cause
}

// fail ends all pending operations of a key with an error.
func (sh *shard) fail(q *keyQueue, err error) {
	for _, w := range q.pending {
		if w.reports && !w.gone && !w.reported {
			sh.lose(q, err)
		}
		sh.end(w, err)
		w.fail(err)
	}
	q.pending = nil
}

// key returns the queue of a key, and makes it if there is none.
func (sh *shard) key(key string, now time.Time) *keyQueue {
	q := sh.keys[key]
	if q == nil {
		sh.sweep(now)
		q = &keyQueue{Key: Key{Bucket: key}, pipe: sh.pipe("")}
		sh.keys[key] = q
		if sh.broom == nil {
			sh.broom = time.AfterFunc(unused, sh.clear)
		}
	}
	q.used = now
	return q
}

// An unused key is remembered for idle while new keys come, and for unused while none come. The
// engine numbers trips for all keys together, so nothing is charged twice. Calls from before can no
// longer return anything.
const (
	idle   = time.Minute
	unused = 10 * time.Minute
)

// idles reports whether the key has not been used for longer than d.
func (q *keyQueue) idles(d time.Duration, now time.Time) bool {
	return !q.busy && !q.queued && len(q.pending) == 0 && now.Sub(q.used) > d
}

// clear drops the unused keys, and runs again later while other keys are left.
func (sh *shard) clear() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for key, q := range sh.keys {
		if q.idles(unused, now) {
			delete(sh.keys, key)
		}
	}
	if len(sh.keys) > 0 {
		sh.broom.Reset(unused)
		return
	}
	sh.keys = make(map[string]*keyQueue) // a map that was large does not shrink
	sh.broom = nil
}

// sweep looks at up to four keys and drops the idle ones. It runs with each new key, and so keeps
// up with them.
func (sh *shard) sweep(now time.Time) {
	looked := 0
	for key, q := range sh.keys {
		if q.idles(idle, now) {
			delete(sh.keys, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}
