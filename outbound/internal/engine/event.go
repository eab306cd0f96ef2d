package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// events are the events that the engine still has to report.
type events struct {
	mu    sync.Mutex
	queue []store.StoreEvent
	busy  bool // a goroutine reports them
}

// report queues an event for Observe. Observe gets the events in their order. The caller may hold
// any lock.
func (e *Engine) report(kind store.StoreEventKind, key string, err error) {
	if e.config.Observe == nil {
		return
	}
	n := &e.events
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, store.StoreEvent{Kind: kind, Key: key, Err: err})
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

// lose reports that the reports of an operation are lost, unless a trip has delivered them.
func (sh *shard) lose(w *pendingOp, err error) {
	if w.reports && !w.reported {
		w.reports = false
		sh.report(store.EventLost, w.queue.Bucket, err)
	}
}

// record is what a key's last trip on record has left, to notice that the store knows less.
type record struct {
	seq   int64         // 0 if no trip is known to be on record
	born  time.Duration // the life of the key
	until time.Duration // before which the record does not go, by the store's clock
	lost  time.Time     // when a loss was last reported
	ids   int64         // the largest number of a booking that the trip has shown
	void  store.Charge  // charges of its life up to its number may be lost
}

// sift makes a charge one of no life if the store may have lost it: since then other calls may have
// its number, and it would return their units.
func (r *record) sift(c *store.Charge) {
	if c.Born == r.void.Born && c.ID <= r.void.ID {
		c.Born = -1
	}
}

// What a store can have lost.
var (
	errGone  = errors.New("the bucket starts empty: the server was restarted, flushed, or evicts keys")
	errOlder = errors.New("the latest charges are gone: the server crashed, failed over, or was restored")
)

// compare reports a loss of data once: the store has an older record of this worker than it has
// answered before, or none although the key should be there. A key without a new life has only
// dropped the record, because it has room for so many. A key that was unused for long has expired
// empty.
func (sh *shard) compare(a *Attempt, now time.Duration) {
	r, born := &a.queue.record, a.Reply.State.Born
	switch {
	case r.seq == 0 || a.Reply.Corrupt:
	case r.older(a):
		sh.lost(a.queue, errOlder)
	case a.Recorded == 0 && born != r.born && now < r.until:
		sh.lost(a.queue, errGone)
	}
	if a.Keep > 0 {
		r.seq, r.born, r.until, r.ids = a.Seq, born, now+a.Keep, a.Reply.State.IDs
	}
}

// older reports whether the store has lost the latest steps of this process.
func (r *record) older(a *Attempt) bool { return a.Recorded > 0 && a.Recorded < r.seq }

// lost reports a loss of data. From now on no step returns a charge from before it.
func (sh *shard) lost(q *keyQueue, loss error) {
	r := &q.record
	r.seq, r.void.Born, r.void.ID = 0, r.born, max(r.ids, r.void.ID)
	if at := time.Now(); r.lost.IsZero() || at.Sub(r.lost) > time.Minute {
		r.lost = at
		sh.report(store.EventDataLoss, q.Bucket, fmt.Errorf("%s: data loss: %w", sh.config.Name, loss))
	}
}
