package engine

import (
	"sync"
	"time"
)

// Event is news that no call returns as its error.
type Event struct {
	Kind Kind
	Key  string // the bucket's; "": the event is about a server
	Err  error  // the cause
}

// Kind is the kind of an [Event].
type Kind uint8

// The kinds of events.
const (
	Away     Kind = iota + 1 // a server does not answer, or refuses every request for now; with Key: the one to which this key has moved
	Back                     // a server answers again, or another in its place; with Key: those to which keys have moved
	Differ                   // another worker uses a key with other limits
	Garbage                  // a key held bytes that no engine has written
	Lost                     // a report did not reach the server
	Denial                   // a server denies this program access
	DataLoss                 // a server has lost what it had answered about a key
)

// events are the events that the engine still has to tell.
type events struct {
	mu    sync.Mutex
	queue []Event
	busy  bool // a goroutine tells them
}

// tell queues an event for Observe. Observe gets the events in their order. The caller
// may hold any lock.
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

// lose tells that the reports of an operation are lost.
func (sh *shard) lose(q *keyQueue, err error) { sh.tell(Lost, q.Bucket, err) }

// tellOf tells the events that an answer carries besides the reply. The shard's lock
// is held.
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
