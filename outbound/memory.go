package outbound

import (
	"context"
	"sync"
	"time"
)

// start is the zero of this process's clock, which is monotonic: it neither
// steps nor knows the time of day.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// keepSet is how long limits that were set at run time outlive their level.
const keepSet = 30 * 24 * time.Hour

// Memory is a [Store] in this process, for several buckets that share keys. A
// key costs about 700 bytes and is dropped some time after it has become idle,
// which loses nothing; there is no goroutine and nothing to close. A bucket
// that nothing shares is better made with [NewBucket], which is faster.
type Memory struct {
	mu   sync.Mutex // protects keys
	keys map[string]*kept
}

type kept struct {
	Stored
	until time.Duration // when it may be forgotten
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return new(Memory) }

// Update implements [Store]. It fails only with the error of ctx.
func (m *Memory) Update(ctx context.Context, key string, op *Op) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := now()
	k := m.keys[key]
	if k == nil {
		m.sweep(t)
		if m.keys == nil {
			m.keys = make(map[string]*kept)
		}
		k = new(kept)
		m.keys[key] = k
	}
	r := op.Apply(&k.Stored, t)
	k.until = later(t, r.Expire)
	if k.Set {
		k.until = later(k.until, keepSet)
	}
	return r, nil
}

// later returns t + d, at most the end of time. t may be negative: a clock's
// zero is anywhere.
func later(t, d time.Duration) time.Duration {
	if d > maxWait-max(0, t) {
		return maxWait
	}
	return t + d
}

// sweep looks at a few keys and drops the idle ones: looking at two for each
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

// Len returns the number of keys that are kept.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}
