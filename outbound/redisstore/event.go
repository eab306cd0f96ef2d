package redisstore

import (
	"fmt"
	"sync"
	"time"
)

// Event is something that no call returns as its error.
type Event struct {
	Kind EventKind
	// Key is the bucket's key, as the program wrote it; "" where it is not about
	// one bucket. Do not log it if it may hold a credential.
	Key string
	// Err is the cause.
	Err error
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of events.
const (
	// EventAway is a server that does not answer, or refuses whatever it is asked
	// until it is in order again, as one without memory: operations fail at once
	// until then. It is told once for each time, of each server of a Cluster.
	EventAway EventKind = iota + 1
	// EventBack is a server that answers again, or another that answers in its
	// place. It follows each EventAway once something is asked again.
	EventBack
	// EventDiffer is a bucket that another worker uses with other limits, as
	// it may be while a new release rolls out. Each worker is held to its own.
	// It is told at most once a minute for each key.
	EventDiffer
	// EventGarbage is a key that held what this package has not written, or was
	// of another type. It was deleted, and begins anew as full to the brim.
	EventGarbage
	// EventLost is a report of a call, such as a Settle or a Hold, that did not
	// reach the server: it costs room, and a hold is not heeded by others. What a
	// call has cost beyond its cost is told again.
	EventLost
	// EventDenied is a server that does not let this program in, or not do what it
	// needs: a password that is missing or wrong, or a permission that is missing.
	// No wait cures that, so it is not EventAway, and each operation fails with the
	// server's words. It is told at once, and again only if operations have gone
	// well since, at most once a minute.
	EventDenied
	// EventDataLoss is a server that has lost a bucket, or the latest of what was
	// charged to it: it was flushed, restarted without its data, evicts keys, or a
	// replica was promoted that was behind. Each time, up to one Capacity more than
	// the limits allow may go out. Err says which it was. Each worker that has used
	// the bucket since its key would have lasted tells it, at most once a minute for
	// each key. A key that has expired, with nothing in it, is no loss.
	EventDataLoss
)

var eventKinds = [...]string{"unknown", "away", "back", "differ", "garbage", "lost", "denied", "dataloss"}

// String returns the kind in one word: "away".
func (k EventKind) String() string {
	if int(k) >= len(eventKinds) {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return eventKinds[k]
}

// news are events that are still to be told.
type news struct {
	mu    sync.Mutex
	queue []Event
	busy  bool // a goroutine tells them
}

// tell has an event told, in the order in which they come. It may be called with
// any lock held.
func (s *Store) tell(kind EventKind, key string, err error) {
	if s.config.Observe == nil {
		return
	}
	n := &s.news
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, Event{Kind: kind, Key: key, Err: err})
	if !n.busy {
		n.busy = true
		go s.observe()
	}
}

func (s *Store) observe() {
	n := &s.news
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.queue, n.busy = nil, false
			n.mu.Unlock()
			return
		}
		e := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		s.config.Observe(e)
	}
}

// tellOf tells of what an answer says beside what was asked. The shard's lock is held.
func (sh *shard) tellOf(ln *line, a *answer, loss error) {
	if a.garbage {
		sh.store.tell(EventGarbage, ln.bucket, nil)
	}
	now := time.Now()
	if loss != nil && (ln.told.IsZero() || now.Sub(ln.told) > time.Minute) {
		ln.told = now
		sh.store.tell(EventDataLoss, ln.bucket, loss)
	}
	if a.differ && now.Sub(ln.differ) > time.Minute {
		ln.differ = now
		sh.store.tell(EventDiffer, ln.bucket, nil)
	}
}
