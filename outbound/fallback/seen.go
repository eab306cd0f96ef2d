package fallback

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// lastSeen is what the store's last reply said of a key: a hold, a slow-down, limits set
// for all, or the level of a calendar. They stay in force when the store goes away. A key
// with none of them has no lastSeen.
type lastSeen struct {
	counted   []leak.Limit // those of levels; nil: none counts by the calendar
	levels    [leak.Max]leak.Level
	limits    []leak.Limit // set for all workers; nil: none are
	stamp     int64        // of limits
	heldUntil time.Duration
	speed     float64
	at        time.Duration // as of when the speed and the levels are
}

// remember keeps what a reply says of its key.
func (s *Store) remember(key string, op *leak.Op, r *leak.Reply) {
	if r.Stale {
		return
	}
	set, counted := r.Stamp != 0, op.Limits
	if op.Action == leak.Replace {
		counted = op.Replacement
	}
	if !dated(counted) {
		counted = nil
	}
	worth := r.State.Rem > 0 || r.State.Speed < 1 || set || counted != nil
	if s.fails() || !worth && !s.anySeen.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if worth {
		t := now()
		seen := lastSeen{heldUntil: later(t, max(0, r.State.Rem)), speed: r.State.Speed, at: t, counted: counted}
		if counted != nil {
			seen.levels = r.State.Level
		}
		if set {
			seen.limits, seen.stamp = op.Limits, r.Stamp
			if op.Action == leak.Replace {
				seen.limits = op.Replacement
			}
		}
		if s.seen == nil {
			s.seen = make(map[string]lastSeen)
		}
		for other := range s.seen { // any other may go
			if len(s.seen) < maxKeys {
				break
			}
			delete(s.seen, other)
		}
		s.seen[key] = seen
	} else {
		delete(s.seen, key)
	}
	s.anySeen.Store(len(s.seen) > 0)
}
