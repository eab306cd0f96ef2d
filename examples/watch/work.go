package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/calls"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// work begins all that the page shows. It ends with ctx.
func work(ctx context.Context, board *watch.Board) {
	github(ctx, board)
	billing(ctx, board)
	search(ctx, board)
	tenants(ctx, board)
	mail(ctx, board)
}

// bucket returns a bucket of this process.
func bucket(key string, limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket(key, limits...))
}

// call has so many workers call an API, paced by a limiter, each after a pause of this length on
// average.
func call(ctx context.Context, api *outboundtest.API, l outbound.Limiter, workers int, pause time.Duration) {
	client := &http.Client{Transport: &transport.Transport{Base: api, Limiter: l}}
	for range workers {
		go every(ctx, pause, func() { _, _ = calls.Get(ctx, client, "http://api.example.com/") })
	}
}

// every calls f until ctx ends, after a pause of this length on average.
func every(ctx context.Context, pause time.Duration, f func()) {
	for calls.Sleep(ctx, rand.N(2*pause)) {
		f()
	}
}

// github is under load, and another program uses the same key.
func github(ctx context.Context, board *watch.Board) {
	api := outboundtest.RateLimitFields(outboundtest.FixedWindow(1200, 2*time.Minute).Of("core", nil))
	api.Latency, api.Jitter = 40*time.Millisecond, 40*time.Millisecond
	l := board.Add("github", queue.New(bucket("github", outbound.PerSecond(8), outbound.Window(1200, 2*time.Minute)), queue.Config{MaxWait: 10 * time.Second}))
	call(ctx, api, l, 20, 2*time.Second)
	call(ctx, api, nil, 1, 800*time.Millisecond)
}

// billing is held: it is down for maintenance, and says for how long.
func billing(ctx context.Context, board *watch.Board) {
	var closed atomic.Bool
	closed.Store(true)
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if closed.Swap(false) {
			w.Header().Set("Retry-After", "540")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	l := board.Add("billing", queue.New(bucket("billing", outbound.PerSecond(5)), queue.Config{MaxWait: 2 * time.Second}))
	call(ctx, &outboundtest.API{Next: next, Latency: 30 * time.Millisecond}, l, 3, 1500*time.Millisecond)
}

// search is slowed: its API allows 6 a second, and 8 are configured.
func search(ctx context.Context, board *watch.Board) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(3, 6)}, Latency: 20 * time.Millisecond}
	l := board.Add("search", queue.New(bucket("search", outbound.Limit{Capacity: 4, LeakRate: 8}, outbound.InFlight(4)), queue.Config{MaxWait: 5 * time.Second}))
	call(ctx, api, l, 12, time.Second)
}

// tenants are many, and a few of them want too much.
func tenants(ctx context.Context, board *watch.Board) {
	of := watch.AddKeyed(board, "tenants", &outbound.Keyed[int]{New: func(tenant int) (outbound.Limiter, error) {
		return outbound.NewBucket(fmt.Sprint("tenant ", tenant), outbound.Limit{Capacity: 20, LeakRate: 2})
	}}, func(tenant int) string { return fmt.Sprint("tenant ", tenant) })
	ask := func(tenant int) {
		if permit, err := of(tenant).Acquire(ctx, outbound.Cost{1}); err == nil {
			permit.Done()
		}
	}
	go every(ctx, 5*time.Millisecond, func() { ask(rand.IntN(2000)) })
	for noisy := range 3 {
		go every(ctx, 250*time.Millisecond, func() { ask(noisy) })
	}
}

// mail is one quota of three workers, in a store that is unavailable for ten seconds of each
// minute.
func mail(ctx context.Context, board *watch.Board) {
	store := &flaky{Memory: store.NewMemory(), begin: time.Now()}
	for i := range 3 {
		b := outbound.Must(outbound.NewSharedBucket(store, "mail", outbound.PerMinute(100)))
		l := outbound.Limiter(queue.New(b, queue.Config{MaxWait: 20 * time.Second}))
		if i == 0 { // this process has one of them on its board; the rest stands for other processes
			l = board.Add("mail", l)
		}
		call(ctx, &outboundtest.API{Latency: 100 * time.Millisecond}, l, 2, 2*time.Second)
	}
}

// flaky is a store that is unavailable now and then.
type flaky struct {
	*store.Memory
	begin time.Time
}

func (s *flaky) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if time.Since(s.begin)%time.Minute > 50*time.Second {
		return store.Reply{}, fmt.Errorf("%w: the example's store takes a break", store.ErrUnavailable)
	}
	r, err := s.Memory.Update(ctx, key, op)
	r.When = time.Now()
	return r, err
}
