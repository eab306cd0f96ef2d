package engine

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// events are the events that the engine still has to tell.
type events struct {
	mu    sync.Mutex
	queue []leak.StoreEvent
	busy  bool // a goroutine tells them
}

// tell queues an event for Observe. Observe gets the events in their order. The caller
// may hold any lock.
func (e *Engine) tell(kind leak.StoreEventKind, key string, err error) {
	if e.config.Observe == nil {
		return
	}
	n := &e.events
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, leak.StoreEvent{Kind: kind, Key: key, Err: err})
	if !n.busy {
		n.busy = true
		go e.observe()
	}
}

func (e *Engine) observe() {
	n := &e.events
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.queue, n.busy = nil, false
			n.mu.Unlock()
			return
		}
		next := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		e.config.Observe(next)
	}
}

// lose tells that the reports of an operation are lost.
func (sh *shard) lose(q *keyQueue, err error) { sh.tell(leak.EventLost, q.Bucket, err) }

// tellOf tells the events that an answer carries besides the reply. The shard's lock
// is held.
func (sh *shard) tellOf(a *Attempt) {
	q := a.queue
	if a.Reply.Garbage {
		sh.tell(leak.EventCorrupt, q.Bucket, nil)
	}
	now := time.Now()
	if a.Loss != nil && (q.loss.IsZero() || now.Sub(q.loss) > time.Minute) {
		q.loss = now
		sh.tell(leak.EventDataLoss, q.Bucket, a.Loss)
	}
	if a.Reply.Differ && now.Sub(q.differ) > time.Minute {
		q.differ = now
		sh.tell(leak.EventDiffer, q.Bucket, nil)
	}
}
