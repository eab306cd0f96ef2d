package outbound

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// StoreFunc is a store that is a function.
type StoreFunc func(ctx context.Context, key string, op *store.Op) (store.Reply, error)

func (f StoreFunc) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	return f(ctx, key, op)
}

// FakeStore is a store whose requests a test counts, delays and loses. The zero value is empty and ready.
type FakeStore struct {
	Way, Back time.Duration // how long a request and its reply take, unless ctx ends before
	Requests  atomic.Int64

	mu      sync.Mutex // protects what follows
	keys    map[string]*store.Stored
	until   map[string]time.Duration // when each key may be dropped
	fails   error
	carries bool
}

func (f *FakeStore) Update(ctx context.Context, key string, op *store.Op) (r store.Reply, err error) {
	f.Requests.Add(1)
	if err = sleep(ctx, f.Way); err == nil {
		r, err = f.Apply(key, op)
	}
	if err == nil {
		err = sleep(ctx, f.Back)
	}
	if err != nil {
		return store.Reply{}, err
	}
	return r, nil
}

// Apply is an Update that takes no time and is not counted.
func (f *FakeStore) Apply(key string, op *store.Op) (store.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var is store.Stored
	if kept := f.keys[key]; kept != nil {
		is = kept.Clone()
	}
	r := op.ApplyAt(&is, now(), calendar.Stamp(time.Now()))
	if f.fails == nil || f.carries {
		if f.keys == nil {
			f.keys, f.until = map[string]*store.Stored{}, map[string]time.Duration{}
		}
		f.keys[key], f.until[key] = &is, later(now(), r.Expire)
	}
	return r, f.fails
}

// Fail has all requests from now on fail with err. They are computed first, and kept if carries is true.
// If err is nil, requests succeed again.
func (f *FakeStore) Fail(err error, carries bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails, f.carries = err, carries
}

// Lose drops all keys.
func (f *FakeStore) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.keys)
}

// Lasts returns when the key may be dropped.
func (f *FakeStore) Lasts(key string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until[key]
}

// sleep returns the error of ctx if that ends before d has passed.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
