package engine

import (
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// keyQueue holds the engine's knowledge of one key, and the operations that gather while a trip is
// under way.
type keyQueue struct {
	Key
	pending []*pendingOp
	trip    *Trip        // that is under way, or waits to be sent again, or nil
	spare   []*pendingOp // memory for the operations of the next trip
	queued  bool         // in the ready of a pipeline
	fence   bool         // the result of the last trip is unknown
	cause   error        // why the latest attempt that asked the store has no answer, or nil
	caused  time.Time
	until   time.Time // when the next trip has failed, if the server could not serve the one before, or zero
	used    time.Time
	// requeued is when the latest trip with the verdict Requeue was sent.
	requeued time.Time

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
	if !q.fence && q.refusal.answer(op, now, r) {
		sh.counts.remembered++
		return nil, nil
	}
	if sh.ill.Load() > 0 {
		if err := sh.pipe(q).refuses(now); err != nil {
			sh.counts.failed++
			if len(op.Reports) > 0 {
				sh.report(store.EventLost, key, err)
			}
			return nil, err
		}
	}
	w, _ := sh.ops.Get().(*pendingOp)
	if w == nil {
		w = &pendingOp{ready: make(chan struct{}, 1)}
	}
	w.op, w.queue, w.reports = op, q, len(op.Reports) > 0
	sh.list(w, now)
	sh.gather(w)
	return w, nil
}

// gather has an operation go with the key's next trip.
func (sh *shard) gather(w *pendingOp) {
	q := w.queue
	q.pending = append(q.pending, w)
	if q.trip == nil {
		sh.push(q)
	}
}

// arrived notes that a key's trip has ended, and lets the next one go.
func (sh *shard) arrived(t *Trip) {
	q := t.queue
	t.leave()
	clear(t.ops)
	q.trip, q.spare, t.ops = nil, t.ops[:0], nil
	if len(q.pending) > 0 {
		sh.push(q)
	}
}

// reason returns why a key has no answer. It returns nil if that is unknown, or is longer ago than
// some quarters of Config.Timeout: then the server has fallen silent since.
func (sh *shard) reason(q *keyQueue, now time.Time, quarters time.Duration) error {
	if now.Sub(q.caused) > sh.config.Timeout/4*quarters {
		return nil
	}
	return q.cause
}

// why is reason, and returns that the server is silent if it is.
func (sh *shard) why(q *keyQueue, now time.Time, quarters time.Duration) error {
	if err := sh.reason(q, now, quarters); err != nil {
		return err
	}
	return sh.config.Carrier.Unavailable(fmt.Errorf("no answer within %v", sh.config.Timeout))
}

// fail ends operations with an error.
func (sh *shard) fail(ops []*pendingOp, err error) {
	for _, w := range ops {
		sh.lose(w, err)
		sh.end(w, nil, nil, err)
	}
}

// refuse ends a trip with an error.
func (sh *shard) refuse(t *Trip, err error) {
	sh.fail(t.ops, err)
	sh.arrived(t)
}

// failAll ends all operations of a key with an error.
func (sh *shard) failAll(q *keyQueue, err error) {
	sh.fail(q.pending, err)
	q.pending = nil
	if q.trip != nil {
		q.fence = true
		sh.refuse(q.trip, err)
	}
}

// key returns the queue of a key, and makes it if there is none.
func (sh *shard) key(key string, now time.Time) *keyQueue {
	q := sh.keys[key]
	if q == nil {
		sh.sweep(now)
		q = &keyQueue{Key: Key{Bucket: key}, fence: sh.fence}
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

// forget drops a key if it has not been used for longer than d.
func (sh *shard) forget(q *keyQueue, d time.Duration, now time.Time) {
	if q.trip == nil && !q.queued && now.Sub(q.used) > d {
		sh.fence = sh.fence || q.fence
		delete(sh.keys, q.Bucket)
	}
}

// clear drops the unused keys, and runs again later while other keys are left.
func (sh *shard) clear() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for _, q := range sh.keys {
		sh.forget(q, unused, now)
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
	for _, q := range sh.keys {
		sh.forget(q, idle, now)
		if looked++; looked == 4 {
			return
		}
	}
}
