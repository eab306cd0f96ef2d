package core

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Answer is what the API has replied to a call.
type Answer struct {
	Kind      store.ReportKind // Refused, Held or Remaining; another kind is not reported
	Sent      bool             // the call was sent only now, Wait after its admission
	Fails     bool             // the call has not succeeded
	Crowded   bool             // too many calls may be in flight
	Why       uint8
	Wait      time.Duration
	MaxWait   time.Duration
	Remaining reports.Numbers // a number that is not known is below 0
}

// soon is a reset that is not worth a hold. A program that keeps a short window's limit sees
// nothing remain at the window's very end. An API rounds the reset to whole seconds, so a hold
// would take up to two seconds of the next window.
const soon = 2 * time.Second

// concerns reports whether the answer to a call that left so long ago matters to the bucket. What
// is left of a quota matters if the calls since could have used it up.
func (b *Core) concerns(a *Answer, since time.Duration) bool {
	switch {
	case a.Sent:
		return a.Wait > spec.Jitter
	case a.Kind == store.Refused:
		return true
	case a.Kind == store.Held:
		return a.Wait > 0
	case a.Kind != store.Remaining, a.Wait <= soon, !a.known():
		return false
	}
	used := reports.Numbers{-1, -1, -1, -1} // at most; negative if no limit counts that unit
	b.each(func(unit int, capacity, rate float64) {
		if n := capacity + rate*since.Seconds(); used[unit] < 0 || n < used[unit] {
			used[unit] = n
		}
	})
	for unit, n := range a.Remaining {
		if n >= 0 && n <= used[unit] {
			return true
		}
	}
	return false
}

// each calls f with the unit, the capacity and the rate of each limit in force, as far as is
// known here.
func (b *Core) each(f func(unit int, capacity, rate float64)) {
	p := b.slow.Load()
	if p == nil {
		l := b.labelled.Value().limit
		f(l.Unit, l.Capacity, l.LeakRate)
		return
	}
	for _, l := range p.Force().Counts() {
		f(int(l.Unit), l.Capacity, l.Rate)
	}
}

// known reports whether any unit's rest is known. It replaces meaningless numbers by -1: below 0,
// NaN, infinite.
func (a *Answer) known() bool {
	any := false
	for i, n := range a.Remaining {
		if n >= 0 && n <= math.MaxFloat64 {
			any = true
		} else {
			a.Remaining[i] = -1
		}
	}
	return any
}

// report returns the report of an answer to the call of this charge.
func (a *Answer) report(c *store.Charge, by []store.Limit) reports.Report {
	r := reports.Report{Report: store.Report{Kind: a.Kind, Charge: c, Wait: max(0, a.Wait), Reason: a.Why}, By: by}
	switch a.Kind {
	case store.Refused:
		r.MaxWait, r.Epoch = max(0, a.MaxWait), c.Epoch
	case store.Remaining:
		r.Used = a.Remaining
	}
	return r
}
