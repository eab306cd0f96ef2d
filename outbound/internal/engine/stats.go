package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// counts are what a shard has counted. Its lock protects them.
type counts struct {
	answered, remembered, failed, cancelled uint64 // operations

	trips   uint64
	time    time.Duration
	within  [len(bounds)]uint64 // trips by the first bound that they do not exceed
	repeats uint64
}

// bounds are those of the histogram of trips.
var bounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, time.Hour,
}

// trip counts a trip that a server has answered.
func (c *counts) trip(took time.Duration) {
	c.trips++
	c.time += max(0, took)
	for i, bound := range bounds {
		if took <= bound {
			c.within[i]++
			return
		}
	}
}

// Stats returns what the engine has counted. It makes no trip and waits for none: it takes
// each lock for as long as it takes to read the counts.
func (e *Engine) Stats() store.StoreStats {
	s := store.StoreStats{Trips: store.Trips{Within: make([]store.TripsWithin, len(bounds))}}
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		c := sh.counts
		sh.mu.Unlock()
		s.Answered += c.answered
		s.Remembered += c.remembered
		s.Failed += c.failed
		s.Cancelled += c.cancelled
		s.Repeats += c.repeats
		s.Trips.Count += c.trips
		s.Trips.Time += c.time
		n := uint64(0)
		for j := range bounds {
			n += c.within[j]
			s.Trips.Within[j].Bound = bounds[j]
			s.Trips.Within[j].Count += n
		}
	}
	if e.ill.Load() > 0 {
		s.Outages = e.outages()
	}
	return s
}

// outages returns the servers that are ill.
func (e *Engine) outages() (all []store.Outage) {
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	for addr, sv := range e.servers {
		if sv.ill.Load() {
			all = append(all, store.Outage{Server: addr, Since: sv.fell, Err: sv.cause})
		}
	}
	slices.SortFunc(all, func(a, b store.Outage) int { return cmp.Compare(a.Server, b.Server) })
	return all
}
