//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// role configures a worker. Its zero value works.
type role struct {
	limits    []outbound.Limit // nil: the fleet's
	callers   int              // goroutines that call as often as they can; 0: 3
	wrap      func(store.Store) store.Store
	timeout   time.Duration // timeout of the store
	tolerance time.Duration // tolerance of the queue
	bare      bool          // no queue: callers ask again and again
}

// worker is one worker of a fleet: a store, a queue, and goroutines that always want to
// call.
type worker struct {
	store  *redisstore.Store
	bucket *outbound.Bucket
	bare   bool // there is no queue
	ask    func(context.Context, outbound.Cost) (outbound.Permit, error)
	call   func() // calls the API

	mu       sync.Mutex
	failures int
	failure  error // the latest failure
	odd      error // a failure that no outage explains
}

// newWorker makes a worker. l records its grants, and observe gets the events of its
// store.
func newWorker(rdb redis.UniversalClient, key string, r role, l ledger, observe func(store.StoreEvent)) (*worker, error) {
	w := &worker{bare: r.bare, store: redisstore.New(rdb, redisstore.Config{Timeout: r.timeout, Observe: observe})}
	var s store.Store = witness{w.store, key, l}
	if r.wrap != nil {
		s = r.wrap(s)
	}
	var err error
	w.bucket, err = outbound.NewSharedBucket(s, key, r.limits...)
	if w.ask = queue.New(w.bucket, queue.Config{Tolerance: r.tolerance}).Acquire; r.bare {
		w.ask = w.bucket.Acquire
	}
	return w, err
}

// work calls until ctx is done.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := w.ask(ctx, outbound.Cost{1})
		if err != nil {
			w.fail(ctx, err)
			nap(ctx, 5*time.Millisecond)
			continue
		}
		w.call()
		p.Done()
	}
}

func (w *worker) fail(ctx context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var failed *outbound.StoreError
	var full *outbound.ThrottledError
	switch {
	case errors.As(err, &failed):
		w.failures++
		w.failure = err
	case w.bare && errors.As(err, &full):
	case ctx.Err() == nil:
		w.odd = fmt.Errorf("a call failed otherwise than by the store: %w", err)
	}
}

// failed returns the number of calls that have failed because of the store, and the
// latest error.
func (w *worker) failed() (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures, w.failure
}

// nap sleeps unless ctx is done.
func nap(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
