package watch

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// keptSeconds is for how many seconds a minute has slots: the last sixty, the one that is not over, and some that
// nobody reads while they are made anew.
const keptSeconds = 64

// minute counts calls by seconds. A call at the end of a second may be counted in the next one, or, if it took a
// minute to count it, not at all.
type minute [keptSeconds]second

// second is the slot of one second. Whoever comes first in a new second empties it.
type second struct {
	at                       atomic.Int64 // which second, from 1; 0: none yet; below 0: it is being emptied
	admitted, refused, byAPI atomic.Uint64
	failed                   atomic.Uint64
	waits                    [len(bounds) + 1]atomic.Uint32
	units                    [len(outbound.Cost{})]floats
}

// slot returns the slot of a time; nil: it is over.
func (m *minute) slot(at time.Duration) *second {
	n := int64(at/time.Second) + 1
	s := &m[n%keptSeconds]
	for {
		was := s.at.Load()
		switch {
		case was == n:
			return s
		case was > n:
			return nil
		case was < 0: // somebody is emptying it, which takes some nanoseconds, unless it was interrupted
			if -was > n {
				return nil
			}
			runtime.Gosched()
		case s.at.CompareAndSwap(was, -n):
			s.admitted.Store(0)
			s.refused.Store(0)
			s.byAPI.Store(0)
			s.failed.Store(0)
			for i := range s.waits {
				s.waits[i].Store(0)
			}
			for i := range s.units {
				s.units[i].bits.Store(0)
			}
			s.at.Store(n)
			return s
		}
	}
}

func (m *minute) admit(at time.Duration, wait int, c *outbound.Cost) {
	if s := m.slot(at); s != nil {
		s.admitted.Add(1)
		s.waits[wait].Add(1)
		for unit, n := range c {
			if countable(n) {
				s.units[unit].add(n)
			}
		}
	}
}

func (m *minute) refuse(at time.Duration) {
	if s := m.slot(at); s != nil {
		s.refused.Add(1)
	}
}

func (m *minute) fail(at time.Duration) {
	if s := m.slot(at); s != nil {
		s.failed.Add(1)
	}
}

func (m *minute) refuseByAPI(at time.Duration) {
	if s := m.slot(at); s != nil {
		s.byAPI.Add(1)
	}
}

// read returns what has happened in the minute before a time.
func (m *minute) read(at time.Duration) *Minute {
	r := &Minute{Seconds: make([]Second, 60)}
	var waits [len(bounds) + 1]uint64
	last := int64(at/time.Second) + 1
	for i := range r.Seconds {
		n := last - 59 + int64(i)
		if n < 1 {
			continue
		}
		s := &m[n%keptSeconds]
		if s.at.Load() != n {
			continue
		}
		r.Seconds[i] = Second{s.admitted.Load(), s.refused.Load(), s.byAPI.Load(), s.failed.Load()}
		for j := range waits {
			waits[j] += uint64(s.waits[j].Load())
		}
	}
	r.P50, r.P99 = quantile(&waits, 0.5), quantile(&waits, 0.99)
	return r
}

// used returns how many units have gone in a window of at most a minute before a time, as far as whole seconds tell:
// of the second in which the window begins, the part that lies in it.
func (m *minute) used(at, window time.Duration, unit int) (n float64) {
	from := at - window
	for sec := max(0, from/time.Second); sec <= at/time.Second; sec++ {
		s := &m[(int64(sec)+1)%keptSeconds]
		if s.at.Load() != int64(sec)+1 {
			continue
		}
		part := 1.0
		if begin := sec * time.Second; begin < from {
			part = 1 - (from - begin).Seconds()
		}
		n += part * s.units[unit].load()
	}
	return n
}

// quantile returns the wait that this part of the calls did not exceed, as evenly as they may be spread in their
// bucket of the histogram; below 0: there were none.
func quantile(waits *[len(bounds) + 1]uint64, part float64) time.Duration {
	total := uint64(0)
	for _, n := range waits {
		total += n
	}
	if total == 0 {
		return -1
	}
	rank := uint64(math.Ceil(part * float64(total)))
	for i, n := range waits {
		if rank <= n {
			if i == 0 {
				return 0 // less than a millisecond: at once
			}
			if i == len(bounds) {
				return boundTimes[i-1]
			}
			from, to := boundTimes[i-1], boundTimes[i]
			return from + time.Duration(float64(to-from)*float64(rank)/float64(n))
		}
		rank -= n
	}
	return boundTimes[len(bounds)-1]
}
