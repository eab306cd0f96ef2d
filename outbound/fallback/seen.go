package fallback

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// seen is the store's last reply about a key of which something stays in force while the key is
// away: a hold, a slow-down, or what was used of calendars.
type seen struct {
	state  store.State // its At is by this process's clock
	limits []store.Limit
}

// remember keeps the reply of a key.
func (s *Store) remember(key string, op *store.Op, r *store.Reply) {
	worth := op.Periods != nil || r.State.Rem > 0 || r.State.Speed < 1
	if s.fails() || r.Stale || r.Untimely || op.Action == store.Replace {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !worth {
		delete(s.seen, key)
		return
	}
	for other := range s.seen { // any other key is dropped
		if len(s.seen) < maxKeys {
			break
		}
		delete(s.seen, other)
	}
	last := seen{r.State, op.Limits}
	last.state.At, last.state.Parts = now(), nil
	s.seen[key] = last
}

// used returns the part of a limit that counts as used at the switch: all of it. If the limit
// counts by the calendar, it is the part that was used by the store's last reply.
func (k *away) used(was *seen, i int, unix time.Duration) float64 {
	then := k.calendar.At(was.state.Unix)
	if i >= len(then) || !then[i].Sound() || !store.Same(was.limits, k.look.Limits) {
		return 1
	}
	if unix >= time.Duration(then[i].End)*time.Second {
		return 0
	}
	return min(1, was.state.Level[i]/was.limits[i].Capacity)
}
