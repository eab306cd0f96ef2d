package engine

// Forget drops a key's remembered refusal. Tests call it after they set the store's clock,
// because the engine measures a refusal by the local clock.
func (e *Engine) Forget(key string) {
	e.with(key, func(q *keyQueue) { q.refusal = refusal{} })
}

// Pending returns the number of operations of a key that wait for a trip, for tests.
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

// Keys returns the number of keys that the engine remembers, for tests.
func (e *Engine) Keys() (n int) {
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		n += len(sh.keys)
		sh.mu.Unlock()
	}
	return n
}
