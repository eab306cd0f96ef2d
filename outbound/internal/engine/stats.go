package engine

import (
	"cmp"
	"slices"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// counts are what a shard has counted. Its lock protects them.
type counts struct {
	answered, remembered, failed, cancelled uint64 // operations

	trips   store.Times
	repeats uint64
}

// Stats returns what the engine has counted. It takes each lock as long as it takes to read the
// counts.
func (e *Engine) Stats() store.StoreStats {
	var s store.StoreStats
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
		s.Requests.Plus(&c.trips)
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
