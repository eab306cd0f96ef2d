package outboundtest

import (
	"math"
	"slices"
	"time"
)

// unknown is the wait of a call if the time is unknown.
const unknown = time.Duration(-1)

// state is what one API remembers for one of its rules. The API calls it under its
// lock. Instants are nanoseconds since the Unix epoch and never decrease.
type state interface {
	// wait returns how long until the units fit without other calls: 0 if they fit now, or unknown.
	// It does not change the count.
	wait(now int64, inProgress int, units float64) time.Duration
	// take counts the units of a call. wait has just returned 0 for it.
	take(now int64, units float64)
	// count returns the units counted now, and how long until they would be 0 without further calls.
	count(now int64, inProgress int) (units float64, reset time.Duration)
	// adopt takes over the units that an old state of the same kind has counted. It
	// reports whether the kind is the same, and leaves the old state as it is.
	adopt(old state, now int64) bool
}

type leakyBucket struct {
	brim, leakRate float64
	level          float64 // at the instant at
	at             int64
}

// levelAt leaks from the last admission on, not from the last look. So its steps, and its
// rounding, are those of History.Check over the admitted calls.
func (b *leakyBucket) levelAt(now int64) float64 {
	return drained(b.level, b.leakRate, float64(now-b.at)/1e9)
}

func (b *leakyBucket) wait(now int64, _ int, units float64) time.Duration {
	over := b.levelAt(now) + units - b.brim
	if over <= 0 {
		return 0
	}
	if units > b.brim {
		return unknown
	}
	// The quotient is cut to whole nanoseconds, and may be a little short. A caller that waited only
	// so long would be refused again.
	w := int64(over / b.leakRate * 1e9)
	for step := int64(1); b.levelAt(now+w)+units > b.brim; step *= 2 {
		w += step
	}
	return time.Duration(w)
}

func (b *leakyBucket) take(now int64, units float64) {
	b.level, b.at = b.levelAt(now)+units, now
}

func (b *leakyBucket) count(now int64, _ int) (float64, time.Duration) {
	level := b.levelAt(now)
	if level <= b.brim*sharp {
		return 0, 0
	}
	return level, time.Duration(math.Ceil(level / b.leakRate * 1e9))
}

func (b *leakyBucket) adopt(old state, now int64) bool {
	o, ok := old.(*leakyBucket)
	if ok {
		b.level, b.at = o.levelAt(now), now
	}
	return ok
}

type fixedWindow struct {
	limit     float64
	window    int64
	fromFirst bool  // a window starts with its first call
	start     int64 // of the window that used is of
	used      float64
}

func (f *fixedWindow) wait(now int64, _ int, units float64) time.Duration {
	switch start := f.startOf(now); {
	case units > f.limit:
		return unknown
	case start == f.start && f.used+units > f.limit:
		return time.Duration(start + f.window - now)
	}
	return 0
}

func (f *fixedWindow) take(now int64, units float64) {
	if start := f.startOf(now); start != f.start {
		f.start, f.used = start, 0
	}
	f.used += units
}

func (f *fixedWindow) count(now int64, _ int) (float64, time.Duration) {
	start, used := f.startOf(now), f.used
	if start != f.start {
		used = 0
	}
	return used, time.Duration(start + f.window - now)
}

func (f *fixedWindow) adopt(old state, _ int64) bool {
	o, ok := old.(*fixedWindow)
	if !ok || o.window != f.window || o.fromFirst != f.fromFirst {
		return false
	}
	f.start, f.used = o.start, o.used
	return true
}

// startOf returns the start of the window that holds now, or would.
func (f *fixedWindow) startOf(now int64) int64 {
	if f.fromFirst {
		if f.used > 0 && now < f.start+f.window {
			return f.start
		}
		return now
	}
	into := now % f.window
	if into < 0 { // before 1970
		into += f.window
	}
	return now - into
}

type slidingLog struct {
	limit  float64
	window int64
	log    []departure // log[:begin] has left the window
	begin  int
	sum    float64 // of log[begin:]
}

func (s *slidingLog) wait(now int64, _ int, units float64) time.Duration {
	s.forget(now)
	if units > s.limit {
		return unknown
	}
	var w time.Duration
	rest := s.sum
	for i := s.begin; i < len(s.log) && rest+units > s.limit; i++ {
		rest -= s.log[i].units
		w = time.Duration(s.log[i].at + s.window - now)
	}
	return w
}

func (s *slidingLog) take(now int64, units float64) {
	if units > 0 {
		s.log = append(s.log, departure{at: now, units: units})
		s.sum += units
	}
}

func (s *slidingLog) count(now int64, _ int) (float64, time.Duration) {
	s.forget(now)
	if s.begin == len(s.log) {
		return 0, 0
	}
	return s.sum, time.Duration(s.log[len(s.log)-1].at + s.window - now)
}

func (s *slidingLog) adopt(old state, _ int64) bool {
	o, ok := old.(*slidingLog)
	if !ok || o.window != s.window {
		return false
	}
	s.log, s.begin, s.sum = slices.Clone(o.log), o.begin, o.sum
	return true
}

// forget drops the calls that are a window old or older. Each time half of the log has expired, it
// moves the rest to the front and adds it up again. So the work per call is constant, and rounding
// does not pile up.
func (s *slidingLog) forget(now int64) {
	for s.begin < len(s.log) && now-s.log[s.begin].at >= s.window {
		s.sum -= s.log[s.begin].units
		s.begin++
	}
	if s.begin*2 < len(s.log) || s.begin == 0 {
		return
	}
	s.log = append(s.log[:0], s.log[s.begin:]...)
	s.begin, s.sum = 0, 0
	for _, d := range s.log {
		s.sum += d.units
	}
}

type inFlight int

func (n inFlight) wait(_ int64, inProgress int, _ float64) time.Duration {
	if inProgress >= int(n) {
		return unknown
	}
	return 0
}

func (n inFlight) take(int64, float64) {}

func (n inFlight) count(_ int64, inProgress int) (float64, time.Duration) {
	return float64(inProgress), 0
}

// The calls in progress are counted outside of the state, so there is nothing to take over.
func (n inFlight) adopt(old state, _ int64) bool {
	_, ok := old.(inFlight)
	return ok
}
