package redisstore

// Forget drops a key's remembered refusal. Tests call it after they set the
// server's clock, because the engine measures a refusal by the local clock.
func (s *Store) Forget(key string) { s.engine.Forget(key) }

// Pending returns the number of operations of a key that wait for a trip.
func (s *Store) Pending(key string) int { return s.engine.Pending(key) }

// Keys returns the number of keys that the engine remembers.
func (s *Store) Keys() int { return s.engine.Keys() }

// Worker returns the name under which the server keeps this store's records.
func (s *Store) Worker() string { return s.carrier.worker.Load().(string) }

// Locked reports whether any lock of the keys is held.
func (s *Store) Locked() bool { return s.engine.Locked() }

// HoldServers takes the lock of the map of servers. free releases it.
func (s *Store) HoldServers() (free func()) { return s.engine.HoldServers() }

// Zone is the number that the script has for a time zone.
var Zone = zone
