package store

import (
	"context"
	"sync"
	"time"
)

// start is the zero of this process's clock. The clock is monotonic: it does not step.
var start = time.Now()

// Key is one key in memory. The zero value is ready to use.
type Key struct {
	mu     sync.Mutex // protects what follows
	stored Stored
	until  time.Duration // when it may be dropped
}

// Update carries op out by the process's clock.
func (k *Key) Update(op *Op) Reply {
	k.mu.Lock()
	defer k.mu.Unlock()
	clock := time.Now()
	t := clock.Sub(start)
	r := op.ApplyAt(&k.stored, t, time.Duration(clock.UnixNano()))
	k.until = add(t, r.Expire)
	return r
}

// Memory is a [Store] in this process, for several buckets that share keys. Memory drops a key some
// time after it has become idle, which loses nothing. It has no goroutine and needs no Close.
type Memory struct {
	mu   sync.Mutex // protects keys
	keys map[string]*Key
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{keys: map[string]*Key{}} }

// Update implements [Store]. It fails only with the error of ctx.
func (m *Memory) Update(ctx context.Context, key string, op *Op) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[key]
	if k == nil {
		m.sweep(time.Since(start))
		k = new(Key)
		m.keys[key] = k
	}
	return k.Update(op), nil
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
