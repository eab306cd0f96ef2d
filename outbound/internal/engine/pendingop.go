package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// pendingOp is an operation whose caller waits.
type pendingOp struct {
	op      *store.Op // nil once the caller has left
	queue   *keyQueue
	ready   chan struct{}
	reply   *store.Reply // without the charges; operations with the same answer share it
	charges []store.Charge
	err     error

	until  time.Time // time at which its caller has waited for too long, or the engine gives up an operation of its own
	before *pendingOp
	after  *pendingOp // neighbours in the shard's list
	next   *pendingOp // after it in the list of those that have their answer

	gate     bool // it asks for one of its trip's costs
	reports  bool // op has reports, which are not lost yet
	packed   bool // a trip has taken its reports along
	reported bool // an earlier trip has delivered its reports
	gone     bool // no caller wants the answer
	over     bool // it has its answer
}

// free keeps a pendingOp for reuse by the same engine. Another engine must not use it: in a
// testing bubble, its channel belongs to that bubble.
func (e *Engine) free(w *pendingOp) {
	*w = pendingOp{ready: w.ready}
	e.ops.Put(w)
}

// list bounds how long the caller of an operation waits: from now on for Config.Timeout,
// even if the operation waits for other trips, for a repetition or for a client that hangs.
// The shard's lock is held, here and in the functions below.
func (sh *shard) list(w *pendingOp, now time.Time) {
	w.until = now.Add(sh.config.Timeout)
	if w.before = sh.last; w.before != nil {
		w.before.after = w
	} else {
		sh.first = w
	}
	sh.last = w
	if sh.clock == nil {
		sh.clock = time.AfterFunc(sh.config.Timeout, sh.lapse)
	}
}

// unlist takes an operation from the list, if it is there.
func (sh *shard) unlist(w *pendingOp) {
	if w.before != nil {
		w.before.after = w.after
	} else if sh.first == w {
		sh.first = w.after
	}
	if w.after != nil {
		w.after.before = w.before
	} else if sh.last == w {
		sh.last = w.before
	}
	w.before, w.after = nil, nil
}

// end ends an operation, with a reply and its charges or with an error. Its caller gets them from
// unlock.
func (sh *shard) end(w *pendingOp, r *store.Reply, charges []store.Charge, err error) {
	sh.unlist(w)
	w.over = true
	if w.gone {
		return
	}
	if w.reply, w.err = r, err; err != nil {
		sh.counts.failed++
	} else {
		sh.counts.answered++
		w.charges = append(w.op.Into[:0], charges...)
	}
	sh.wake(w)
}

// wake has unlock wake the caller of an operation.
func (sh *shard) wake(w *pendingOp) {
	if sh.woken == nil {
		sh.woken = w
	} else {
		sh.latest.next = w
	}
	sh.latest = w
}

// unlock unlocks the shard, and wakes the callers whose operations have ended meanwhile.
func (sh *shard) unlock() {
	w := sh.woken
	sh.woken, sh.latest = nil, nil
	sh.mu.Unlock()
	for w != nil {
		next := w.next // once it is woken, w is its caller's
		w.ready <- struct{}{}
		w = next
	}
}

// lapse answers the callers who have waited for too long.
func (sh *shard) lapse() {
	sh.mu.Lock()
	defer sh.unlock()
	now := time.Now()
	for w := sh.first; w != nil && !w.until.After(now); w = sh.first {
		w.err = sh.why(w.queue, now, 3) // a trip may wait for a lock for so long
		sh.drop(w, w.err)
		sh.counts.failed++
		sh.wake(w)
	}
	if sh.first == nil {
		sh.clock = nil
		return
	}
	sh.clock.Reset(sh.first.until.Sub(now))
}

// abandon gives up an operation. It reports whether the operation had no answer yet. If a
// trip books for it all the same, deliver returns the booking.
func (sh *shard) abandon(w *pendingOp, err error) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.over || w.gone {
		return false
	}
	sh.drop(w, err)
	sh.counts.cancelled++
	return true
}

// drop notes that the caller of an operation goes. The shard's lock is held.
func (sh *shard) drop(w *pendingOp, err error) {
	sh.unlist(w)
	w.gone, w.op = true, nil
	if !w.packed {
		sh.lose(w, err)
	}
}
