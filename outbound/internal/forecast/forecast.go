// Package forecast foresees when quotas are used up, from how their levels have grown.
package forecast

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// shortest is the shortest window that counts as a quota.
	shortest = time.Minute
	// likely is the part of a quota that is used before it counts as likely to be used up.
	likely = 0.8
	// quiet is how long a limit is not reported again.
	quiet = time.Hour
	// basis is the part of a period whose pace counts at most: three hours of a day.
	basis = 1. / 8
	// evidence is how long a pace must have been observed at least, as a part of the time that is
	// foreseen by it.
	evidence = 1. / 4
	// most is the longest time between two looks at the levels, and finest the shortest.
	most, finest = time.Minute, time.Second
	// A quota that lasts is used up after Never.
	Never = time.Duration(math.MaxInt64)
)

// Quotas are the quotas of one bucket.
type Quotas struct {
	next atomic.Int64 // when to look again

	mu     sync.Mutex // protects what follows
	limits []store.Limit
	all    [store.Max]*history // of calendars and fixed windows; nil for other limits
	warned [store.Max]warning
}

// warning is what was reported of a limit.
type warning struct {
	likely, before bool          // now, and at a time
	at             time.Duration // by the store's clock
}

// New returns quotas that have no history.
func New() *Quotas {
	q := new(Quotas)
	q.next.Store(math.MinInt64) // times may be negative
	return q
}

// Due reports whether the next reply should have [store.State.Parts], for Note. It is true once a
// minute, and once in a 512th of a shorter quota.
func (q *Quotas) Due(now time.Duration) bool {
	next := q.next.Load()
	return int64(now) >= next && q.next.CompareAndSwap(next, int64(now+most))
}

// Warning is a quota that has become likely to be used up.
type Warning struct {
	Limit int           // its index
	In    time.Duration // how long until then
}

// Note takes in a state with Parts at a time of this process, and returns what has become likely:
// for each limit at most once in an hour.
func (q *Quotas) Note(now time.Duration, limits []store.Limit, s *store.State) (all []Warning) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !store.Same(q.limits, limits) {
		q.all, q.warned = [store.Max]*history{}, [store.Max]warning{}
	}
	q.limits = limits
	for i := range limits {
		l := &limits[i]
		length := lengthOf(l, s, i)
		if length < shortest {
			continue
		}
		step := max(finest, min(most, length/512))
		if next := int64(now + step); next < q.next.Load() {
			q.next.Store(next)
		}
		if !l.Slides() {
			if q.all[i] == nil {
				q.all[i] = new(history)
			}
			q.all[i].note(limits, s, i, step, time.Duration(basis*float64(length)))
		}
		w := &q.warned[i]
		if _, in := q.foresee(s, i, 0, math.Inf(1)); in == Never || s.Level[i] < likely*l.Capacity {
			w.likely = false
		} else if s.Level[i] < l.Capacity && !w.likely && (!w.before || s.At-w.at >= quiet) {
			*w = warning{true, true, s.At}
			all = append(all, Warning{i, in})
		}
	}
	return all
}

// lengthOf returns the length of a quota's window or period, and 0 for a limit that is none.
func lengthOf(l *store.Limit, s *store.State, i int) time.Duration {
	if l.Kind.Calendar() {
		return s.Parts[i].End - s.Parts[i].Begin
	} else if l.Parted() {
		return l.Window
	}
	return 0
}

// Foresee returns the units a second that calls took of limit i lately, by a state with Parts that
// Note has had. It also returns how long until the quota is used up at that pace, or [Never] if it
// lasts until its period ends. Waiting calls take so many units, at most rate of them a second.
func (q *Quotas) Foresee(limits []store.Limit, s *store.State, i int, waiting, rate float64) (pace float64, in time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i >= len(limits) || len(s.Parts) != len(limits) || !store.Same(q.limits, limits) || lengthOf(&q.limits[i], s, i) < shortest {
		return 0, Never
	}
	return q.foresee(s, i, waiting, rate)
}

func (q *Quotas) foresee(s *store.State, i int, waiting, rate float64) (pace float64, in time.Duration) {
	l := &q.limits[i]
	left, basis := max(0, l.Capacity-s.Level[i]), time.Duration(basis*float64(lengthOf(l, s, i)))
	// until returns when so many units have left at a pace.
	until := func(n, pace float64) time.Duration {
		at := max(0, s.Rem).Seconds() + n/rate
		if n > waiting {
			at = max(at, (n-waiting)/pace)
		}
		if !(at < Never.Seconds()) {
			return Never
		}
		return time.Duration(at * 1e9)
	}
	if !l.Slides() {
		h, end := q.all[i], s.Empty(q.limits, i)
		if h == nil {
			return 0, Never
		}
		return h.pace(s.At, basis, left <= waiting, func(pace float64) time.Duration {
			if at := until(left, pace); at < end {
				return at
			}
			return Never
		})
	}
	dial := s.Dial()
	return sliding(s, l, i).pace(dial, basis, left <= waiting, func(pace float64) time.Duration {
		n := left
		for _, t := range s.Parts[i].Slots { // each frees its units, in order
			if t.End <= dial {
				continue
			}
			if at := until(n, pace); at <= s.Real(t.End-dial) {
				return at
			}
			n += t.Units
		}
		if at := until(n, pace); at <= s.Real(l.Window) { // then what leaves now is free again
			return at
		}
		return Never
	})
}
