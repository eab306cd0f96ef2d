package outbound

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// openMemory is a store whose keys a test may look at, and take away.
type openMemory struct {
	mu    sync.Mutex
	keys  map[string]*leak.Stored
	until map[string]time.Duration // when each may be forgotten
}

func (m *openMemory) Update(_ context.Context, key string, op *leak.Op) (leak.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys, m.until = make(map[string]*leak.Stored), make(map[string]time.Duration)
	}
	if m.keys[key] == nil {
		m.keys[key] = new(leak.Stored)
	}
	r := op.Apply(m.keys[key], now())
	m.until[key] = later(now(), r.Expire)
	return r, nil
}
