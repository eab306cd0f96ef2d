package outbound

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// waiting has the callers that wait for a bucket, and the reports that ride on its next
// operation.
type waiting struct {
	changes atomic.Uint64 // that the watchers were notified of

	lastSuccess atomic.Int64 // the newest epoch in which a call has succeeded
	reported    atomic.Int64 // the newest that was reported to the state
	// The newest epoch of which the store knows no success since the hold.
	unconfirmed atomic.Int64

	lates     atomic.Uint64 // calls that count from when they were sent
	lateUntil atomic.Int64  // when the burst of them ends, since start
	lateAgain atomic.Int64  // when the next may begin

	hasKept atomic.Bool
	failing atomic.Bool // the last request has failed: kept reports wait for one that succeeds

	mu       sync.Mutex // protects what follows
	watchers map[*func()]struct{}
	kept     []report // settles to send: they were postponed while a queue waits, or their requests have failed
}

func (w *waiting) init() {
	w.lastSuccess.Store(never)
	w.reported.Store(never)
	w.unconfirmed.Store(never)
	w.lateUntil.Store(never)
	w.lateAgain.Store(never)
}

// late reports whether a call that was sent so late counts from now on. It does in the first burst
// of late calls, and in the next one that comes after 50 times as long.
func (w *waiting) late(by time.Duration) bool {
	at, by := now(), min(by, time.Hour)
	if again := w.lateAgain.Load(); at >= time.Duration(again) && w.lateAgain.CompareAndSwap(again, int64(at+50*by)) {
		w.lateUntil.Store(int64(at + by))
	}
	return at <= time.Duration(w.lateUntil.Load())
}

// listen has f called with every change. stop ends it, and reports whether it leaves postponed
// reports without a waiting call.
func (w *waiting) listen(f func()) (stop func() (stranded bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watchers == nil {
		w.watchers = make(map[*func()]struct{})
	}
	w.watchers[&f] = struct{}{}
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watchers, &f)
		return len(w.watchers) == 0 && w.hasKept.Load()
	}
}

// watched reports whether calls wait for the bucket.
func (w *waiting) watched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watchers) > 0
}

// changed notifies the watchers that their plans may have changed.
func (w *waiting) changed() {
	w.changes.Add(1)
	w.mu.Lock()
	if len(w.watchers) == 0 {
		w.mu.Unlock()
		return
	}
	all := make([]func(), 0, len(w.watchers))
	for f := range w.watchers {
		all = append(all, *f)
	}
	w.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// postpone keeps a settle for a queue that waits, if there is one. Units are returned only as far
// as no booked call counts on them. The queue learns of the change, returns what it has booked far
// ahead, and books again. That booking carries the settle, so the units go to a call that waits for
// them.
func (w *waiting) postpone(r report) bool {
	w.mu.Lock()
	wanted := len(w.watchers) > 0
	if wanted {
		w.keepLocked(r)
	}
	w.mu.Unlock()
	if wanted {
		w.changed()
	}
	return wanted
}

// keepLocked keeps the report with a charge of its own: the call's may be in use when the report is
// sent.
func (w *waiting) keepLocked(r report) {
	c := *r.Charge
	r.Charge = &c
	w.kept = append(w.kept, r)
	w.hasKept.Store(true)
}

// piggyback returns the reports that ride on the next operation: the first success after a hold,
// and, if so asked, settles. reported is the epoch that was reported to the state before.
func (w *waiting) piggyback(settles bool) (reports []report, reported int64) {
	e := w.lastSuccess.Load()
	if reported = w.reported.Swap(e); e != reported {
		reports = append(reports, report{Report: store.Report{Kind: store.Succeeded, Epoch: e}})
	}
	if settles && w.hasKept.Load() && !w.failing.Load() {
		w.mu.Lock()
		reports, w.kept = append(reports, w.kept...), nil
		w.hasKept.Store(false)
		w.mu.Unlock()
	}
	return reports, reported
}

// quiet reports whether nothing is to ride on the next operation.
func (w *waiting) quiet() bool {
	return !w.hasKept.Load() && w.lastSuccess.Load() == w.reported.Load()
}

// requeue keeps some reports of a failed request, to send again once a request has succeeded: a
// success, and what calls have cost beyond their cost. It is unknown whether the store has carried
// the request out. What it has added may be added twice, which costs capacity; what it may have
// returned is not returned again.
func (w *waiting) requeue(reports []report, reported int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing.Store(true)
	for _, r := range reports {
		switch r.Kind {
		case store.Succeeded:
			w.reported.CompareAndSwap(r.Epoch, reported)
		case store.Settled:
			beyond := false
			for u := range r.used {
				beyond = beyond || r.used[u] > r.cost[u]
				r.used[u] = max(r.used[u], r.cost[u])
			}
			if beyond {
				w.keepLocked(r)
			}
		}
	}
}

// succeeded notes that a call which knew of epoch has succeeded: that rides on the next operation.
// It reports whether to send it immediately, because it is the first known success after a hold. In
// a large fleet this process's next operation may be far away, and until then every refusal would
// double the hold.
func (w *waiting) succeeded(epoch int64) (first bool) {
	for e := w.lastSuccess.Load(); e < epoch; e = w.lastSuccess.Load() {
		if w.lastSuccess.CompareAndSwap(e, epoch) {
			return w.unconfirmed.CompareAndSwap(epoch, never)
		}
	}
	return false
}

// confirm notes whether a store's state has a success since the hold.
func (w *waiting) confirm(s *store.State) {
	if s.Fails >= 0 {
		w.unconfirmed.Store(s.Epoch)
	} else {
		w.unconfirmed.Store(never)
	}
}
