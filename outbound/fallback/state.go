package fallback

import "time"

// State is how calls are decided, as [Store.State] reports.
type State struct {
	// Unavailable is true if keys do without the store: their calls fail, or are on shares or
	// unlimited. It stays true for about two seconds after the store is available again, in which
	// calls need both.
	Unavailable bool
	// Since is when Unavailable last changed. If it is zero, the store was never unavailable.
	Since time.Time
	// Err is the store's latest error while Unavailable, with its cause.
	Err error
	// Keys is how many keys are away. The store is yet to be charged with what they have spent.
	Keys int
	// Outages counts how often Unavailable became true. It only grows.
	Outages uint64
}

// State reports how calls are decided now. It returns immediately. It may be called from OnSwitch.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Unavailable: len(s.keys) > 0, Since: s.since, Err: s.cause, Keys: len(s.keys), Outages: s.outages}
}
