package outbound

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// openMemory is a store whose keys a test may look at, and take away.
type openMemory struct {
	mu    sync.Mutex
	keys  map[string]*store.Stored
	until map[string]time.Duration // when each may be forgotten
}

func (m *openMemory) Update(_ context.Context, key string, op *store.Op) (store.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys, m.until = make(map[string]*store.Stored), make(map[string]time.Duration)
	}
	if m.keys[key] == nil {
		m.keys[key] = new(store.Stored)
	}
	r := op.Apply(m.keys[key], now())
	m.until[key] = later(now(), r.Expire)
	return r, nil
}

// lose takes all keys away.
func (m *openMemory) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.keys)
}

// lasts returns when the key may be forgotten.
func (m *openMemory) lasts(key string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.until[key]
}
