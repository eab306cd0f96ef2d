package fallback

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// seen is what the store's last reply said of a key that stays in force when the key is away: a
// hold, a slow-down, or what was used of calendars. A key with none of them has no seen.
type seen struct {
	at     time.Duration // by this process's clock
	rem    time.Duration // of a hold
	speed  float64
	limits []store.Limit // those of levels; nil: none counts by the calendar
	levels store.Units
	ends   [store.Max]time.Duration // Unix times of the ends of their periods
}

// remember keeps what a reply says of its key.
func (s *Store) remember(key string, op *store.Op, r *store.Reply) {
	worth := r.State.Rem > 0 || r.State.Speed < 1
	if s.fails() || r.Stale || r.Untimely {
		worth = false
	} else if op.Periods != nil {
		worth = true
	}
	if !worth && !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.announce()
	defer s.mu.Unlock()
	if k := s.keys[key]; k != nil && s.fails() {
		s.comeBackLocked(key)
	}
	if !worth {
		if !r.Stale && !r.Untimely {
			delete(s.seen, key)
		}
		return
	}
	last := seen{at: now(), rem: r.State.Rem, speed: r.State.Speed}
	if op.Periods != nil && op.Action != store.Replace {
		last.limits, last.levels = op.Limits, r.State.Level
		for i, p := range op.Periods {
			if last.ends[i] = time.Duration(p.End) * time.Second; r.State.Unix >= last.ends[i] {
				last.ends[i] = time.Duration(p.Next) * time.Second
			}
		}
	}
	if s.seen == nil {
		s.seen = make(map[string]seen)
	}
	if _, known := s.seen[key]; !known && len(s.seen) >= maxKeys {
		for other := range s.seen { // any other goes
			delete(s.seen, other)
			break
		}
	}
	s.seen[key] = last
	s.any.Store(true)
}

// used returns the part of a limit by the calendar that was used when the store last said so. If it
// never has, that is all of it.
func (was *seen) used(l *store.Limit, unix time.Duration) float64 {
	for i := range was.limits {
		m := &was.limits[i]
		if m.Kind != l.Kind || m.Unit != l.Unit || m.Name != l.Name || m.Zone != l.Zone {
			continue
		}
		if unix >= was.ends[i] {
			return 0
		}
		return min(1, was.levels[i]/m.Capacity)
	}
	return 1
}
