package engine

// Forget drops what is remembered of a key's refusals, for tests that set the store's clock:
// the time here knows nothing of that.
func (e *Engine) Forget(key string) {
	e.with(key, func(q *keyQueue) { q.refusal = refusal{} })
}

// Pending returns how many operations of a key wait for a trip, for tests.
func (e *Engine) Pending(key string) (n int) {
	e.with(key, func(q *keyQueue) { n = len(q.pending) })
	return n
}

func (e *Engine) with(key string, f func(*keyQueue)) {
	sh := e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if q := sh.keys[key]; q != nil {
		f(q)
	}
}

// Keys returns how many keys are remembered, for tests.
func (e *Engine) Keys() (n int) {
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		n += len(sh.keys)
		sh.mu.Unlock()
	}
	return n
}

// Locked reports whether any lock of the keys is held, for tests.
func (e *Engine) Locked() bool {
	for i := range e.shards {
		if !e.shards[i].mu.TryLock() {
			return true
		}
		e.shards[i].mu.Unlock()
	}
	return false
}

// HoldServers holds the lock that all servers share until it is told to let it go, for
// tests.
func (e *Engine) HoldServers() (free func()) {
	e.serversMu.Lock()
	return e.serversMu.Unlock
}
