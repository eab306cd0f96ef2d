package watch

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// atLocked returns the counts at the beginning of a second, which is at most a minute ago.
func (m *meter) atLocked(second int64) *Calls {
	for ; second <= m.last; second++ { // empty seconds have no mark
		if k := &m.marks[second%keptSeconds]; k.second == second {
			return &k.Calls
		}
	}
	return &m.Calls
}

// minuteLocked returns what has happened in the minute before a time.
func (m *meter) minuteLocked(at time.Duration) *Minute {
	r, first := &Minute{Seconds: make([]Second, 60)}, int64(at/time.Second)-59
	for i := range r.Seconds {
		r.Seconds[i] = m.atLocked(first + int64(i) + 1).minus(m.atLocked(first + int64(i)).Second)
	}
	was := m.atLocked(first)
	r.Sum = m.minus(was.Second)
	r.P50, r.P99 = quantile(&was.Waits, &m.Waits, 0.5), quantile(&was.Waits, &m.Waits, 0.99)
	return r
}

// used returns how many units were admitted in a window of at most a minute before a time. It
// counts the second at the window's beginning in part.
func (m *meter) used(at, window time.Duration, unit int) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := at - window
	first := m.atLocked(int64(from / time.Second)).Units[unit]
	rest := m.atLocked(int64(from/time.Second) + 1).Units[unit]
	return m.Units[unit] - rest + (rest-first)*(1-(from%time.Second).Seconds())
}

// quantile returns the wait that this part of the calls between two counts did not exceed, as if
// they were spread evenly in their bucket of the histogram. It is below 0 if there were none.
func quantile(was, is *store.Times, part float64) time.Duration {
	if is.Count == was.Count {
		return -1
	}
	rank, lower := uint64(math.Ceil(part*float64(is.Count-was.Count))), time.Duration(0)
	for i, bound := range store.TimeBounds {
		switch n := is.Within[i] - was.Within[i]; {
		case rank > n:
			rank -= n
		case i == 0: // below a millisecond
			return 0
		default:
			return lower + time.Duration(float64(bound-lower)*float64(rank)/float64(n))
		}
		lower = bound
	}
	return lower
}
