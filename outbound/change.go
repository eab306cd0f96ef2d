package outbound

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

// watches are the callers of Bucket.Observe, or nil.
type watches struct {
	atomic.Pointer[[]*watch]
	quotas atomic.Pointer[forecast.Quotas] // nil before the first of them
}

// add registers f for changes. collected is how many calls were forgotten until now.
func (a *watches) add(f func(Event), collected int) (stop func()) {
	w := &watch{report: f, speed: 1, collected: collected}
	a.quotas.CompareAndSwap(nil, forecast.New())
	a.edit(func(all []*watch) []*watch { return append(all, w) })
	return func() {
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
		a.edit(func(all []*watch) []*watch {
			return slices.DeleteFunc(all, func(v *watch) bool { return v == w })
		})
	}
}

// edit changes a copy, because another goroutine may be reading the watches.
func (a *watches) edit(change func([]*watch) []*watch) {
	for {
		old := a.Load()
		var all []*watch
		if old != nil {
			all = slices.Clone(*old)
		}
		next := &all
		if all = change(all); len(all) == 0 {
			next = nil
		}
		if a.CompareAndSwap(old, next) {
			return
		}
	}
}

// announce notifies each watch of what an operation has found.
func (a *watches) announce(r *reply) {
	if a.Load() == nil {
		return
	}
	a.each(func(w *watch) { w.lookLocked(r) })
	if law := r.Force.Law; len(r.State.Parts) == len(law) && len(r.Share) == 0 && !r.State.Corrupt {
		for _, f := range a.quotas.Load().Note(now(), law, &r.State) {
			a.each(func(w *watch) {
				w.addLocked(Event{Kind: EventRunsOut, Limit: spec.OfLaw(&law[f.Limit]).Label(), UsedUpIn: f.In})
			})
		}
	}
}

// due reports whether the next reply should have what a forecast of these limits needs.
func (a *watches) due(law []store.Limit) bool {
	if a.Load() == nil {
		return false
	}
	for i := range law {
		if law[i].Parted() {
			return a.quotas.Load().Due(now())
		}
	}
	return false
}

// announceLate notifies each watch of lost reservations.
func (a *watches) announceLate(places int, late time.Duration) {
	if places > 0 {
		a.each(func(w *watch) { w.addLocked(Event{Kind: EventLate, Calls: places, Late: max(0, late)}) })
	}
}

// each makes each watch note events, and report them in a goroutine of its own.
func (a *watches) each(note func(*watch)) {
	all := a.Load()
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

// watch is one caller of Bucket.Observe.
type watch struct {
	report func(Event)

	mu           sync.Mutex // protects what follows
	news         []Event    // not reported yet
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

// run reports events until there are none.
func (w *watch) run() {
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
func (w *watch) lookLocked(r *reply) {
	if r.State.Speed == 0 {
		return
	}
	s, known, limits := &r.State, w.limits != nil, &r.Force.Limits
	if known && s.At < w.at && (r.When.IsZero() || r.When.Sub(w.when) < outdated) {
		return
	}
	held, until := s.Rem > 0, later(s.At, s.Rem)
	added, first := s.Epoch-w.epoch, s.Epoch == int64(s.Born) || s.Epoch == s.Born.Microseconds()
	resumed := known && s.Born != w.born && !first && added > 0 && added < newEpoch
	passed := s.At >= w.until && (!resumed || s.Born >= w.until)
	if w.held && (passed || !held && !resumed) {
		w.addLocked(Event{Kind: EventReleased, Hold: max(0, min(w.until, s.At)-w.begun)})
		w.held = false
	}
	if resumed {
		w.addLocked(Event{Kind: EventResumed})
		w.held, w.speed = false, 1
	}
	switch {
	case held && !w.held:
		w.begun, w.until = s.At, until
		w.addLocked(Event{Kind: EventHeld, Hold: s.Rem, Reason: reasonOf(s.Why)})
	case held && until > later(w.until, clock.Rounded):
		w.until = until
		w.addLocked(Event{Kind: EventExtended, Hold: s.Rem, Reason: reasonOf(s.Why)})
	}
	if s.Speed < w.speed {
		w.addLocked(Event{Kind: EventSlowed, Speed: s.Speed})
	}
	if known && (w.limits != limits || w.inFlight != r.inFlight) {
		before, after := spec.All(w.limits.Counts(), w.inFlight), spec.All(limits.Counts(), r.inFlight)
		if !slices.Equal(before, after) {
			w.addLocked(Event{Kind: EventLimits, Before: textOf(before), Limits: textOf(after)})
		}
	}
	if n := r.Collected - w.collected; n > 0 {
		w.addLocked(Event{Kind: EventForgotten, Calls: n})
	}
	w.at, w.when, w.held, w.born, w.epoch, w.speed = s.At, r.When, held, s.Born, s.Epoch, s.Speed
	w.limits, w.inFlight, w.collected = limits, r.inFlight, max(w.collected, r.Collected) // requests may cross
}

// textOf returns limits as text, each as its String.
func textOf(limits []spec.Limit) string {
	all := make([]string, len(limits))
	for i := range limits {
		all[i] = limits[i].String()
	}
	return strings.Join(all, "; ")
}

func (w *watch) addLocked(c Event) { w.news = append(w.news, c) }
