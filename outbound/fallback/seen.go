package fallback

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// lastSeen is what the store's last reply said of a key: a hold, a slow-down, or limits set
// for all. They stay in force when the store goes away. A key with none of them has no
// lastSeen.
type lastSeen struct {
	limits    []leak.Limit // set for all workers; nil: none are
	stamp     int64        // of limits
	heldUntil time.Duration
	speed     float64
	at        time.Duration // as of when the speed is
}

// lastLevels is what the store's last reply said of a key that counts by the calendar. A key
// that does not has none. Levels are apart from lastSeen, because every reply brings some:
// however many keys there are, they make the Store forget no hold.
type lastLevels struct {
	limits []leak.Limit // those of levels
	levels [leak.Max]leak.Level
	at     time.Duration // as of when the levels are
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
	worth, counts := r.State.Rem > 0 || r.State.Speed < 1 || set, dated(counted)
	if s.fails() || !worth && !counts && !s.anySeen.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := now()
	if worth {
		seen := lastSeen{heldUntil: later(t, max(0, r.State.Rem)), speed: r.State.Speed, at: t}
		if set {
			seen.limits, seen.stamp = counted, r.Stamp
		}
		keep(&s.seen, key, seen)
	} else {
		delete(s.seen, key)
	}
	if counts {
		keep(&s.levels, key, lastLevels{limits: counted, levels: r.State.Level, at: t})
	} else {
		delete(s.levels, key)
	}
	s.anySeen.Store(len(s.seen)+len(s.levels) > 0)
}

// keep puts a value into a map of at most maxKeys keys. If there are so many, any other goes.
func keep[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	if _, known := (*m)[key]; !known && len(*m) >= maxKeys {
		for other := range *m {
			delete(*m, other)
			break
		}
	}
	(*m)[key] = v
}
