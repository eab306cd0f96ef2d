package engine

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// pendingOp is an operation whose caller waits.
type pendingOp struct {
	op      *store.Op // nil: the caller has gone
	queue   *keyQueue
	ready   chan struct{}
	reply   *store.Reply // without the charges; operations with the same answer share it
	charges []store.Charge
	err     error

	until  time.Time // time at which its caller has waited for too long, or the engine gives up an operation of its own
	before *pendingOp
	after  *pendingOp // neighbours in the shard's list

	place    int  // as a gate: index of its charge among the trip's; below 0: it has none
	gate     bool // it is one of its trip's gates
	reports  bool // op has reports
	packed   bool // a trip has taken its reports along
	reported bool // an earlier trip has delivered its reports
	lapsed   bool // its caller has gone because the time was up
	gone     bool // no caller wants the answer
	over     bool // it has its answer
}

// The places of gates without a charge.
const (
	refused  = -1
	requeued = -2 // it goes with the next trip
)

// free keeps a pendingOp for reuse by the same engine. Another engine must not use it: in a
// testing bubble, its channel belongs to that bubble.
func (e *Engine) free(w *pendingOp) {
	*w = pendingOp{ready: w.ready}
	e.ops.Put(w)
}

// fail answers the caller with an error.
func (w *pendingOp) fail(err error) {
	if !w.gone {
		w.err = err
		w.ready <- struct{}{}
	}
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

// end notes that an operation has its answer, which may be an error.
func (sh *shard) end(w *pendingOp, err error) {
	sh.unlist(w)
	w.over = true
	switch {
	case w.gone:
	case err != nil:
		sh.counts.failed++
	default:
		sh.counts.answered++
	}
}

// lapse answers the callers who have waited for too long.
func (sh *shard) lapse() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for w := sh.first; w != nil && !w.until.After(now); w = sh.first {
		if w.err = sh.reason(w.queue, now); w.err == nil {
			w.err = sh.config.Carrier.Unavailable(sh.config.silent())
		}
		sh.drop(w, w.err)
		w.lapsed = true
		sh.counts.failed++
		w.ready <- struct{}{}
	}
	if sh.first == nil {
		sh.clock = nil
		return
	}
	sh.clock.Reset(sh.first.until.Sub(now))
}

// abandon gives up an operation. It reports whether the operation had no answer yet. If a
// trip books for it all the same, hand returns the booking.
func (sh *shard) abandon(w *pendingOp, err error) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.over || w.lapsed {
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
	if w.reports && !w.packed {
		sh.lose(w.queue, err)
	}
}
