package redisstore

// Forget drops what is remembered of refusals, for tests that set the server's
// clock: the time here knows nothing of that.
func (s *Store) Forget(key string) { s.engine.Forget(key) }

// Pending returns how many operations of a key wait for a trip.
func (s *Store) Pending(key string) int { return s.engine.Pending(key) }

// Lines returns how many keys are remembered.
func (s *Store) Lines() int { return s.engine.Keys() }

// Worker returns the name under which the server keeps this store's records.
func (s *Store) Worker() string { return s.carrier.worker.Load().(string) }

// Locked reports whether any lock of the keys is held.
func (s *Store) Locked() bool { return s.engine.Locked() }

// HoldServers holds the lock that all servers share until it is told to let it go.
func (s *Store) HoldServers() (free func()) { return s.engine.HoldServers() }
