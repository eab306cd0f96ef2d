package main

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// With start, reading the clock takes one read of the monotonic clock.
var start = time.Now()

// casLimit is the least that a limit needs: one clock read, and one
// compare-and-swap of the time at which the limit is empty.
type casLimit struct {
	_         [64]byte // a cache line of its own, as a library would arrange
	empty     atomic.Int64
	_         [56]byte
	interval  int64
	tolerance int64
}

func (l *casLimit) take() bool {
	now := int64(time.Since(start))
	for {
		old := l.empty.Load()
		next := max(old, now) + l.interval
		if next-now > l.tolerance {
			return false
		}
		if l.empty.CompareAndSwap(old, next) {
			return true
		}
	}
}

// mutexLimit is the same under a mutex.
type mutexLimit struct {
	mu        sync.Mutex
	empty     int64
	interval  int64
	tolerance int64
}

func (l *mutexLimit) take() bool {
	l.mu.Lock()
	now := int64(time.Since(start))
	next := max(l.empty, now) + l.interval
	ok := next-now <= l.tolerance
	if ok {
		l.empty = next
	}
	l.mu.Unlock()
	return ok
}

// handLimits are three token buckets behind a mutex, as people write them.
type handLimits struct {
	mu     sync.Mutex
	last   time.Time
	limits [3]struct{ tokens, burst, rate float64 }
}

func (h *handLimits) take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	sec := now.Sub(h.last).Seconds()
	h.last = now
	ok := true
	for i := range h.limits {
		l := &h.limits[i]
		l.tokens = min(l.burst, l.tokens+sec*l.rate)
		ok = ok && l.tokens >= 1
	}
	for i := range h.limits {
		if ok {
			h.limits[i].tokens--
		}
	}
	return ok
}

// byHand has three limits. Only the last may refuse.
func byHand() contender {
	build := func(burst, rate float64) func() (func() bool, error) {
		return func() (func() bool, error) {
			h := &handLimits{last: time.Now()}
			for i := range h.limits {
				h.limits[i].tokens, h.limits[i].burst, h.limits[i].rate = plenty, plenty, plenty
			}
			h.limits[2].tokens, h.limits[2].burst, h.limits[2].rate = burst, burst, rate
			return h.take, nil
		}
	}
	return contender{
		name:   "by hand, three limits",
		admit:  build(plenty, plenty),
		refuse: build(1, 1/time.Hour.Seconds()),
		alone:  true,
	}
}

func floor() contender {
	return contender{
		name: "floor",
		admit: func() (func() bool, error) {
			l := &casLimit{interval: 1, tolerance: plenty}
			return l.take, nil
		},
		refuse: func() (func() bool, error) {
			l := &casLimit{interval: int64(time.Hour), tolerance: int64(time.Hour)}
			return l.take, nil
		},
		alone: true,
		keyed: func() (func(string) bool, func(), error) {
			// It lacks the padding of casLimit: a million keys share memory rather than a few cache
			// lines.
			type entry struct{ empty atomic.Int64 }
			var keys sync.Map
			return func(key string) bool {
				v, ok := keys.Load(key)
				if !ok {
					v, _ = keys.LoadOrStore(key, new(entry))
				}
				e, now := v.(*entry), int64(time.Since(start))
				for {
					old := e.empty.Load()
					next := max(old, now) + 1
					if next-now > plenty {
						return false
					}
					if e.empty.CompareAndSwap(old, next) {
						return true
					}
				}
			}, nothing, nil
		},
		wait: func(perSecond float64) (func(context.Context) error, error) {
			return newFIFO(perSecond).wait, nil
		},
		cancels: true,
		wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			return &casTransport{base, &casLimit{interval: 1, tolerance: plenty}}, nil
		},
	}
}

func floorMutex() contender {
	return contender{
		name: "floor with a mutex",
		admit: func() (func() bool, error) {
			l := &mutexLimit{interval: 1, tolerance: plenty}
			return l.take, nil
		},
		refuse: func() (func() bool, error) {
			l := &mutexLimit{interval: int64(time.Hour), tolerance: int64(time.Hour)}
			return l.take, nil
		},
		alone: true,
		keyed: func() (func(string) bool, func(), error) {
			// One mutex for the map and all its entries.
			var mu sync.Mutex
			empty := make(map[string]*int64)
			return func(key string) bool {
				mu.Lock()
				e := empty[key]
				if e == nil {
					e = new(int64)
					empty[key] = e
				}
				now := int64(time.Since(start))
				next := max(*e, now) + 1
				ok := next-now <= plenty
				if ok {
					*e = next
				}
				mu.Unlock()
				return ok
			}, nothing, nil
		},
	}
}

type casTransport struct {
	base  http.RoundTripper
	limit *casLimit
}

func (t *casTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.limit.take() {
		return nil, errNoRoom
	}
	return t.base.RoundTrip(r)
}
