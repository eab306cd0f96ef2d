// Package changes finds what has changed in a key since the reply before, and reports it to
// observers.
package changes

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/forecast"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The kinds of changes, as package outbound names and explains them.
const (
	kindHeld      = "held"
	kindExtended  = "extended"
	kindReleased  = "released"
	kindResumed   = "resumed"
	kindSlowed    = "slowed"
	kindLimits    = "limits"
	kindForgotten = "forgotten"
	kindRunsOut   = "runs out"
	kindLate      = "late"
)

// Change is an event of a bucket, with fields as those of package outbound's Event.
type Change struct {
	Kind           string
	Hold           time.Duration
	Why            uint8 // of the hold
	Speed          float64
	Calls          int
	Late           time.Duration
	Limit          string
	UsedUpIn       time.Duration
	Before, Limits string
}

// Observers are the observers of a key. The zero Observers are none.
type Observers struct {
	all    atomic.Pointer[[]*observer]
	quotas atomic.Pointer[forecast.Quotas] // nil before the first of them
}

// Any reports whether there is one.
func (a *Observers) Any() bool { return a.all.Load() != nil }

// Quotas returns the forecast of the key's quotas, or nil if there was never an observer.
func (a *Observers) Quotas() *forecast.Quotas { return a.quotas.Load() }

// Add registers f, which is called with one change after the other, in a goroutine of its own.
// collected is how many calls were forgotten until now.
func (a *Observers) Add(f func(Change), collected int) (stop func()) {
	w := &observer{report: f, speed: 1, collected: collected}
	a.quotas.CompareAndSwap(nil, forecast.New())
	a.edit(func(all []*observer) []*observer { return append(all, w) })
	return func() {
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
		a.edit(func(all []*observer) []*observer {
			return slices.DeleteFunc(all, func(v *observer) bool { return v == w })
		})
	}
}

// edit changes a copy, because another goroutine may be reading it.
func (a *Observers) edit(change func([]*observer) []*observer) {
	for {
		old := a.all.Load()
		var all []*observer
		if old != nil {
			all = slices.Clone(*old)
		}
		next := &all
		if all = change(all); len(all) == 0 {
			next = nil
		}
		if a.all.CompareAndSwap(old, next) {
			return
		}
	}
}

// Announce notifies each observer of what the reply to a step says. collected is how many calls
// were forgotten until now.
func (a *Observers) Announce(r *key.Reply, collected int) {
	if a.all.Load() == nil {
		return
	}
	a.each(func(w *observer) { w.lookLocked(r, collected) })
	if law := r.Force.Law; len(r.State.Parts) == len(law) && len(r.Share) == 0 && !r.State.Corrupt {
		for _, f := range a.quotas.Load().Note(key.Now(), law, &r.State) {
			a.each(func(w *observer) {
				w.addLocked(Change{Kind: kindRunsOut, Limit: spec.OfLaw(&law[f.Limit]).Label(), UsedUpIn: f.In})
			})
		}
	}
}

// Due reports whether the next reply should have what a forecast of these limits needs.
func (a *Observers) Due(law []store.Limit) bool {
	if a.all.Load() == nil {
		return false
	}
	for i := range law {
		if law[i].Parted() {
			return a.quotas.Load().Due(key.Now())
		}
	}
	return false
}

// AnnounceLate notifies each observer of so many lost reservations.
func (a *Observers) AnnounceLate(places int, late time.Duration) {
	if places > 0 {
		a.each(func(w *observer) { w.addLocked(Change{Kind: kindLate, Calls: places, Late: max(0, late)}) })
	}
}

// each makes each observer note changes, and report them in a goroutine of its own.
func (a *Observers) each(note func(*observer)) {
	all := a.all.Load()
	if all == nil {
		return
	}
	for _, w := range *all {
		w.mu.Lock()
		if note(w); len(w.news) > 0 && !w.reporting {
			w.reporting = true
			go w.run()
		}
		w.mu.Unlock()
	}
}

// observer is one of them.
type observer struct {
	report func(Change)

	mu           sync.Mutex // protects what follows
	news         []Change   // not reported yet
	reporting    bool       // run is reporting them
	stopped      bool
	at           time.Duration // the store's time at the last look, and what was seen then
	when         time.Time     // the local time, if the store returns one
	held         bool
	begun, until time.Duration // of the hold, by the store's time
	born         time.Duration
	epoch        int64
	speed        float64
	limits       *key.Limits // nil before the first look
	inFlight     *slots.Limit
	collected    int
}

// outdated is how much older than another a reply may be that has come after it. A
// store's time that goes back for longer has been set.
const outdated = 10 * time.Second

// newEpoch is by how much the epoch grows, at least, when a key has expired, or was lost, and
// begins again. Its epoch starts with the time when it began, in nanoseconds, or microseconds as
// in Redis. A hold or a Resume adds one.
const newEpoch = 100

// run reports changes until there are none.
func (w *observer) run() {
	for {
		w.mu.Lock()
		if len(w.news) == 0 || w.stopped {
			w.reporting = false
			w.mu.Unlock()
			return
		}
		c := w.news[0]
		w.news = slices.Delete(w.news, 0, 1)
		w.mu.Unlock()
		w.report(c)
	}
}

// lookLocked notes what is new in a reply.
func (w *observer) lookLocked(r *key.Reply, collected int) {
	if r.State.Speed == 0 {
		return
	}
	s, known, limits := &r.State, w.limits != nil, &r.Force.Limits
	inFlight, _ := r.InFlight.(*slots.Limit)
	if known && s.At < w.at && (r.When.IsZero() || r.When.Sub(w.when) < outdated) {
		return
	}
	held, until := s.Rem > 0, key.Later(s.At, s.Rem)
	added, first := s.Epoch-w.epoch, s.Epoch == int64(s.Born) || s.Epoch == s.Born.Microseconds()
	resumed := known && s.Born != w.born && !first && added > 0 && added < newEpoch
	passed := s.At >= w.until && (!resumed || s.Born >= w.until)
	if w.held && (passed || !held && !resumed) {
		w.addLocked(Change{Kind: kindReleased, Hold: max(0, min(w.until, s.At)-w.begun)})
		w.held = false
	}
	if resumed {
		w.addLocked(Change{Kind: kindResumed})
		w.held, w.speed = false, 1
	}
	switch {
	case held && !w.held:
		w.begun, w.until = s.At, until
		w.addLocked(Change{Kind: kindHeld, Hold: s.Rem, Why: s.Why})
	case held && until > key.Later(w.until, clock.Rounded):
		w.until = until
		w.addLocked(Change{Kind: kindExtended, Hold: s.Rem, Why: s.Why})
	}
	if s.Speed < w.speed {
		w.addLocked(Change{Kind: kindSlowed, Speed: s.Speed})
	}
	if known && (w.limits != limits || w.inFlight != inFlight) {
		before, after := spec.All(w.limits.Counts(), w.inFlight), spec.All(limits.Counts(), inFlight)
		if !slices.Equal(before, after) {
			w.addLocked(Change{Kind: kindLimits, Before: textOf(before), Limits: textOf(after)})
		}
	}
	if n := collected - w.collected; n > 0 {
		w.addLocked(Change{Kind: kindForgotten, Calls: n})
	}
	w.at, w.when, w.held, w.born, w.epoch, w.speed = s.At, r.When, held, s.Born, s.Epoch, s.Speed
	w.limits, w.inFlight, w.collected = limits, inFlight, max(w.collected, collected) // requests may cross
}

// textOf returns limits as text, each as its String.
func textOf(limits []spec.Limit) string {
	all := make([]string, len(limits))
	for i := range limits {
		all[i] = limits[i].String()
	}
	return strings.Join(all, "; ")
}

func (w *observer) addLocked(c Change) { w.news = append(w.news, c) }
