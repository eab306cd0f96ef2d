package engine

import (
	"sync"
	"time"
)

// Event is something that no call returns as its error.
type Event struct {
	Kind Kind
	Key  string // the bucket's; "": it is about a server
	Err  error  // the cause
}

// Kind is the kind of an [Event].
type Kind uint8

// The kinds of events.
const (
	Away     Kind = iota + 1 // a server does not answer, or refuses all for now
	Back                     // a server answers again, or another in its place
	Differ                   // another worker uses a key with other limits
	Garbage                  // a key held what no engine has written
	Lost                     // a report did not reach the server
	Denial                   // a server does not let this program in
	DataLoss                 // a server has lost what it had said of a key
)

// events are still to be told.
type events struct {
	mu    sync.Mutex
	queue []Event
	busy  bool // a goroutine tells them
}

// tell has an event told, in the order in which they come. It may be called with
// any lock held.
func (e *Engine) tell(kind Kind, key string, err error) {
	if e.config.Observe == nil {
		return
	}
	n := &e.events
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, Event{Kind: kind, Key: key, Err: err})
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

// lose tells of the reports that are lost with an operation.
func (sh *shard) lose(q *keyQueue, err error) { sh.tell(Lost, q.Bucket, err) }

// tellOf tells of what an answer says beside what was asked. The shard's lock is held.
func (sh *shard) tellOf(a *Attempt) {
	q := a.queue
	if a.Reply.Garbage {
		sh.tell(Garbage, q.Bucket, nil)
	}
	now := time.Now()
	if a.Loss != nil && (q.loss.IsZero() || now.Sub(q.loss) > time.Minute) {
		q.loss = now
		sh.tell(DataLoss, q.Bucket, a.Loss)
	}
	if a.Reply.Differ && now.Sub(q.differ) > time.Minute {
		q.differ = now
		sh.tell(Differ, q.Bucket, nil)
	}
}
