package leak

import (
	"context"
	"sync"
	"time"
)

// start is the zero of this process's clock. The clock is monotonic: it does not step.
var start = time.Now()

// keepSet is how long limits that were set outlive their levels.
const keepSet = 30 * 24 * time.Hour

// Memory is a [Store] in this process, for several buckets that share keys. A key costs
// about 700 bytes. Memory drops it some time after it has become idle, which loses nothing.
// It has no goroutine and needs no Close.
type Memory struct {
	mu   sync.Mutex // protects keys
	keys map[string]*kept
}

type kept struct {
	Stored
	until time.Duration // when Memory may drop it
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return new(Memory) }

// Update implements [Store]. It fails only with the error of ctx.
func (m *Memory) Update(ctx context.Context, key string, op *Op) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := time.Now()
	t := clock.Sub(start)
	k := m.keys[key]
	if k == nil {
		m.sweep(t)
		if m.keys == nil {
			m.keys = make(map[string]*kept)
		}
		k = new(kept)
		m.keys[key] = k
	}
	r := op.ApplyAt(&k.Stored, t, time.Duration(clock.UnixNano()))
	k.until = add(t, r.Expire)
	if k.Stamp != 0 {
		k.until = add(k.until, keepSet)
	}
	return r, nil
}

// sweep looks at a few keys and drops the idle ones: looking at four for each
// new one is enough to keep up, and no call pays for many.
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
