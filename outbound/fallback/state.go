package fallback

import "time"

// State is what becomes of calls, as [Store.State] tells.
type State struct {
	// Away says that calls do without the store: they fail, or go on with shares or as they like.
	Away bool
	// Since is when Away last changed, as OnSwitch was told; zero: the store was never away.
	Since time.Time
	// Err is the store's latest error while it is away, with its cause.
	Err error
	// Until is when calls leave their shares and go to the store again, once a try has reached
	// it; zero: no try has, or the store is not away.
	Until time.Time
	// Keys is how many keys calls have used here, with a share or without. The store is yet to
	// be charged with what they have spent; after the return they become fewer as it is.
	Keys int
	// Outages counts how often the store was found away. It only grows.
	Outages uint64
}

// State tells what becomes of calls now. It makes no trip and waits for none, whatever the Store
// is doing, and may be called from OnSwitch.
func (s *Store) State() State {
	if s == nil {
		return State{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Now()
	at := func(when time.Duration) time.Time { return t.Add(when - t.Sub(start)) }
	b := &s.breaker
	is := State{Away: b.in(away), Keys: len(s.keys), Outages: b.outages}
	switch {
	case is.Away:
		is.Since, is.Err = at(b.since), b.cause
		if b.returns {
			is.Until = at(b.until)
		}
	case b.outages > 0:
		is.Since = at(b.back)
	}
	return is
}
