package store

import (
	"context"
	"sync"
	"time"
)

// start is the zero of this process's clock. The clock is monotonic: it does not step.
var start = time.Now()

// kept is one key.
type kept struct {
	Stored
	until time.Duration // when it may be dropped
}

// Memory is a [Store] in this process, for several buckets that share keys. Memory drops a key some
// time after it has become idle, which loses nothing. It has no goroutine and needs no Close.
type Memory struct {
	mu   sync.Mutex // protects keys
	keys map[string]*kept
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{keys: map[string]*kept{}} }

// Update implements [Store]. It fails only with the error of ctx.
func (m *Memory) Update(ctx context.Context, key string, op *Op) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := time.Now()
	now, k := clock.Sub(start), m.keys[key]
	if k == nil {
		m.sweep(now)
		k = new(kept)
		m.keys[key] = k
	}
	r := op.ApplyAt(&k.Stored, now, time.Duration(clock.UnixNano()))
	k.until = add(now, r.Expire)
	return r, nil
}

// sweep looks at a few keys and drops the idle ones: looking at four for each new one is enough to
// keep up, and no call pays for many.
func (m *Memory) sweep(t time.Duration) {
	looked := 0
	for key, k := range m.keys {
		if k.until < t {
			delete(m.keys, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

// Len returns the number of keys that Memory keeps.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}
