package main

import "sync"

// keyedMap is the usual wrapper around a limiter that knows no keys: a map and a lock for reading,
// which is the quickest of the usual ways with many goroutines. It keeps every key.
type keyedMap[T any] struct {
	mu   sync.RWMutex
	byID map[string]T
}

func (m *keyedMap[T]) get(key string, create func() T) T {
	m.mu.RLock()
	v, ok := m.byID[key]
	m.mu.RUnlock()
	if ok {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok = m.byID[key]; ok {
		return v
	}
	if m.byID == nil {
		m.byID = make(map[string]T)
	}
	v = create()
	m.byID[key] = v
	return v
}
