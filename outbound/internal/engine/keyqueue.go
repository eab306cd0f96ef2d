package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// keyQueue holds the engine's knowledge of one key, and the operations that gather while a
// trip is under way.
type keyQueue struct {
	Key
	pipe    *pipeline
	pending []*pendingOp
	away    bool  // a trip is under way
	queued  bool  // in pipe.ready
	fence   bool  // what became of the last trip is not known
	cause   error // why the latest attempt that asked the store has no answer; nil: it has one
	caused  time.Time
	astray  outage // of the node to which its own node sends it
	used    time.Time

	refusal refusal
	offset  clockOffset
	differ  time.Time // when a Differ event was last told
	loss    time.Time // when a DataLoss event was last told
}

// enter queues an operation, or answers it at once. If it answers, it returns no
// pendingOp: it returns an error, or writes the reply.
func (sh *shard) enter(key string, op *leak.Op, r *leak.Reply) (*pendingOp, error) {
	now := time.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := sh.key(key, now)
	if q.refusal.answer(op, now, r) {
		sh.counts.remembered++
		return nil, nil
	}
	if err := q.refuses(now); err != nil {
		sh.counts.failed++
		if len(op.Reports) > 0 {
			sh.lose(q, err)
		}
		if q.pipe.hangs(now) {
			sh.probe(q, op)
		}
		return nil, err
	}
	w, _ := sh.ops.Get().(*pendingOp)
	if w == nil {
		w = &pendingOp{ready: make(chan struct{}, 1)}
	}
	w.op, w.queue, w.tells = op, q, len(op.Reports) > 0
	sh.list(w, now)
	sh.push(q, w)
	return w, nil
}

// refuses returns the reason why an operation fails without an attempt, or nil.
func (q *keyQueue) refuses(now time.Time) error {
	if q.astray.cause != nil && (q.away || q.queued || now.Before(q.astray.until)) {
		return q.astray.cause
	}
	return q.pipe.refuses(now)
}

// heard notes that the store has answered a trip of a key.
func (sh *shard) heard(q *keyQueue) {
	q.cause = nil
	sh.inReach(q)
}

// probe sends the store a look that nobody waits for.
func (sh *shard) probe(q *keyQueue, op *leak.Op) {
	sh.pushOwn(q, &leak.Op{Limits: op.Limits, Periods: op.Periods, Stamp: op.Stamp})
}

// pushOwn queues an operation of the engine's own, that nobody waits for.
func (sh *shard) pushOwn(q *keyQueue, op *leak.Op) {
	sh.push(q, &pendingOp{op: op, queue: q, until: time.Now().Add(sh.config.Timeout), gone: true})
}

func (sh *shard) push(q *keyQueue, w *pendingOp) {
	q.pending = append(q.pending, w)
	if !q.away && !q.queued {
		q.pipe.push(q)
	}
}

// arrived notes that a trip of a key has ended, and lets the next one go.
func (sh *shard) arrived(q *keyQueue) {
	q.away = false
	if len(q.pending) > 0 && !q.queued {
		q.pipe.push(q)
	}
}

// reason returns why a key has no answer. It returns nil if that is not known, or is so long ago that the server has
// fallen silent since.
func (sh *shard) reason(q *keyQueue, now time.Time) error {
	if now.Sub(q.caused) > sh.config.Timeout/4*3 {
		return nil
	}
	return q.cause
}

// fail ends all pending operations of a key with an error.
func (sh *shard) fail(q *keyQueue, err error) {
	for _, w := range q.pending {
		if w.tells && !w.gone && !w.reported {
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

// An unused key is remembered for idle while new keys come, and for unused while none
// come. The engine numbers trips for all keys together, so nothing is charged twice. Calls
// from before can no longer give anything back.
const (
	idle   = time.Minute
	unused = 10 * time.Minute
)

// idles reports whether nobody has used a key for longer than d.
func (q *keyQueue) idles(d time.Duration, now time.Time) bool {
	return !q.away && !q.queued && len(q.pending) == 0 && now.Sub(q.used) > d
}

// clear drops the unused keys, and runs again later while other keys are left.
func (sh *shard) clear() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for key, q := range sh.keys {
		if q.idles(unused, now) {
			sh.inReach(q)
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

// sweep looks at up to four keys and drops the idle ones. It runs with each new key, and
// so keeps up with them.
func (sh *shard) sweep(now time.Time) {
	looked := 0
	for key, q := range sh.keys {
		if q.idles(idle, now) {
			sh.inReach(q)
			delete(sh.keys, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}
