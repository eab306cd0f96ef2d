// Package reports keeps the reports to a key until they are sent, and the callers to notify of
// changes.
package reports

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Numbers are a number for each unit.
type Numbers = [store.MaxUnit + 1]float64

// Free is the number of a unit that a call does not cost.
const Free = -1e-300

// Valid reports whether every number is Free, or finite and not negative.
func Valid(c *Numbers) bool {
	if Positive(c) {
		return true
	}
	d := *c
	for i, n := range d {
		if n == Free {
			d[i] = 0
		}
	}
	return Positive(&d)
}

// Positive reports whether every number is finite and not negative.
func Positive(c *Numbers) bool {
	// A comparison with NaN is false, so NaN fails the first four.
	return c[0] >= 0 && c[1] >= 0 && c[2] >= 0 && c[3] >= 0 &&
		c[0] <= math.MaxFloat64 && c[1] <= math.MaxFloat64 && c[2] <= math.MaxFloat64 && c[3] <= math.MaxFloat64
}

// Report is what a call says about itself, in the units of its cost: other limits than those of its
// booking may be in force when it is sent.
type Report struct {
	store.Report
	By   []store.Limit // that the Charge was booked by, or nil if they are unknown
	Used Numbers       // Settled: what the call really cost; Remaining: what remains, or below 0
	Cost Numbers       // Settled: what it was to take
}

// never is before any time, and before any epoch.
const never = math.MinInt64 / 2

// Outbox keeps the reports that ride on the next operation of a key, and has the callers that wait
// for the key.
type Outbox struct {
	changes atomic.Uint64 // that the watchers were notified of

	lastSuccess atomic.Int64 // the newest epoch with a successful call
	reported    atomic.Int64 // the newest that was reported to the state
	// The newest epoch whose success after the hold is not in the store.
	unconfirmed atomic.Int64

	lates atomic.Uint64 // calls that count from when they were sent

	hasKept atomic.Bool
	failing atomic.Bool // the last request has failed: kept reports wait for one that succeeds

	mu       sync.Mutex // protects what follows
	watchers map[*func()]struct{}
	kept     []Report // settles to send: they were postponed while a queue waits, or their requests have failed

	lateUntil time.Duration // when the burst of late calls ends
	lateAgain time.Duration // when the next may begin
}

// Init empties the outbox, whose zero value is of no use.
func (o *Outbox) Init() {
	o.lastSuccess.Store(never)
	o.reported.Store(never)
	o.unconfirmed.Store(never)
	o.lateUntil, o.lateAgain = never, never
}

// Late reports whether a call that is sent at a time, and so late, counts from then on. It does in
// the first burst of late calls, and in the next one that comes after 50 times as long.
func (o *Outbox) Late(at, by time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if by = min(by, time.Hour); at >= o.lateAgain {
		o.lateUntil, o.lateAgain = at+by, at+50*by
	}
	return at <= o.lateUntil
}

// Listen has f called with every change. stop ends it, and reports whether it leaves postponed
// reports without a waiting call.
func (o *Outbox) Listen(f func()) (stop func() (stranded bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watchers == nil {
		o.watchers = make(map[*func()]struct{})
	}
	o.watchers[&f] = struct{}{}
	return func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watchers, &f)
		return len(o.watchers) == 0 && o.hasKept.Load()
	}
}

// Watched reports whether calls wait for the bucket.
func (o *Outbox) Watched() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.watchers) > 0
}

// Changes returns how often the callers were notified.
func (o *Outbox) Changes() uint64 { return o.changes.Load() }

// Lates returns how many calls count from when they were sent.
func (o *Outbox) Lates() uint64 { return o.lates.Load() }

// SentLate notes one more of them, whose reports have been sent.
func (o *Outbox) SentLate() {
	o.lates.Add(1)
	o.Changed()
}

// Recovered notes that a request has succeeded, and reports whether reports were kept until one
// does.
func (o *Outbox) Recovered() bool { return o.failing.Swap(false) && o.hasKept.Load() }

// Changed notifies the watchers that their plans may have changed. Watchers take locks of their
// own: the caller holds no lock of a key or of slots.
func (o *Outbox) Changed() {
	o.changes.Add(1)
	o.mu.Lock()
	if len(o.watchers) == 0 {
		o.mu.Unlock()
		return
	}
	all := make([]func(), 0, len(o.watchers))
	for f := range o.watchers {
		all = append(all, *f)
	}
	o.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// Postpone keeps settles for a queue that waits, if there is one. Units are returned only as far
// as no booked call counts on them. The queue learns of the change, returns what it has booked far
// ahead, and books again. That booking carries the settles, so the units go to a call that waits
// for them.
func (o *Outbox) Postpone(all []Report) bool {
	o.mu.Lock()
	wanted := len(o.watchers) > 0
	for i := 0; wanted && i < len(all); i++ {
		o.keepLocked(all[i])
	}
	o.mu.Unlock()
	if wanted {
		o.Changed()
	}
	return wanted
}

// keepLocked keeps the report with a charge of its own: the call's may be in use when the report is
// sent.
func (o *Outbox) keepLocked(r Report) {
	c := *r.Charge
	r.Charge = &c
	o.kept = append(o.kept, r)
	o.hasKept.Store(true)
}

// Ride returns the reports that ride on the next operation: the first success after a hold,
// and, if so asked, settles. reported is the epoch that was reported to the state before.
func (o *Outbox) Ride(settles bool) (reports []Report, reported int64) {
	e := o.lastSuccess.Load()
	if reported = o.reported.Swap(e); e != reported {
		reports = append(reports, Report{Report: store.Report{Kind: store.Succeeded, Epoch: e}})
	}
	if settles && o.hasKept.Load() && !o.failing.Load() {
		o.mu.Lock()
		reports, o.kept = append(reports, o.kept...), nil
		o.hasKept.Store(false)
		o.mu.Unlock()
	}
	return reports, reported
}

// Quiet reports whether nothing is to ride on the next operation.
func (o *Outbox) Quiet() bool {
	return !o.hasKept.Load() && o.lastSuccess.Load() == o.reported.Load()
}

// Failed keeps some reports of a failed request, to send again once a request has succeeded: a
// success, and what calls have cost beyond their cost. It is unknown whether the store has carried
// the request out. What it has added may be added twice, which costs capacity; what it may have
// returned is not returned again.
func (o *Outbox) Failed(reports []Report, reported int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing.Store(true)
	for _, r := range reports {
		switch r.Kind {
		case store.Succeeded:
			o.reported.CompareAndSwap(r.Epoch, reported)
		case store.Settled:
			beyond := false
			for u := range r.Used {
				beyond = beyond || r.Used[u] > r.Cost[u]
				r.Used[u] = max(r.Used[u], r.Cost[u])
			}
			if beyond {
				o.keepLocked(r)
			}
		}
	}
}

// Succeeded notes that a call which knew of epoch has succeeded: that rides on the next operation.
// It reports whether to send it immediately, because it is the first known success after a hold. In
// a large fleet this process's next operation may be far away, and until then every refusal would
// double the hold.
func (o *Outbox) Succeeded(epoch int64) (first bool) {
	for e := o.lastSuccess.Load(); e < epoch; e = o.lastSuccess.Load() {
		if o.lastSuccess.CompareAndSwap(e, epoch) {
			return o.unconfirmed.CompareAndSwap(epoch, never)
		}
	}
	return false
}

// Confirm notes whether a store's state has a success since the hold.
func (o *Outbox) Confirm(s *store.State) {
	if s.Fails >= 0 {
		o.unconfirmed.Store(s.Epoch)
	} else {
		o.unconfirmed.Store(never)
	}
}
