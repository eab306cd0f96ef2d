package redisstore

// Forget drops what is remembered of refusals, for tests that set the server's
// clock: the time here knows nothing of that.
func (s *Store) Forget(key string) {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.lines[key]; ln != nil {
		ln.refusal = refusal{}
	}
}

// Pending returns how many operations of a key wait for a trip.
func (s *Store) Pending(key string) int {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.lines[key]; ln != nil {
		return len(ln.pending)
	}
	return 0
}

// Lines returns how many keys are remembered.
func (s *Store) Lines() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.lines)
		sh.mu.Unlock()
	}
	return n
}

// Worker returns the name under which the server keeps this store's records.
func (s *Store) Worker() string { return s.worker.Load().(string) }

// Locked reports whether any lock of a shard is held.
func (s *Store) Locked() bool {
	for i := range s.shards {
		if !s.shards[i].mu.TryLock() {
			return true
		}
		s.shards[i].mu.Unlock()
	}
	return false
}

// HoldServers holds the lock that all servers share until it is told to let it go.
func (s *Store) HoldServers() (free func()) {
	s.mu.Lock()
	return s.mu.Unlock
}
