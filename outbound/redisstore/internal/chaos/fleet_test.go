//go:build linux

package chaos

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// patience bounds a wait that would otherwise hang. Nothing else depends on it.
const patience = 2 * time.Minute

// fleet is a set of workers in this process, each with a store and a client of its
// own. They share a bucket, and call an API that only records the time of each call.
type fleet struct {
	*record
	t         *testing.T
	key       string
	limits    []outbound.Limit
	tolerance time.Duration
	api       outboundtest.API
	late      *lateness
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu      sync.Mutex
	members []*member
	events  map[store.StoreEventKind]int
}

// leaky and window are the limits of most fleets. Beside each other both bind: the window stops
// calls for 100 ms and more, and then the leaky limit lets ten of them go at once.
var (
	leaky  = outbound.Limit{Capacity: 10, LeakRate: 100}
	window = outbound.Window(20, 200*time.Millisecond)
)

// member is a worker of a fleet, with its calls.
type member struct {
	*worker
	calls outboundtest.History
}

func newFleet(t *testing.T, limits ...outbound.Limit) *fleet {
	f := &fleet{
		record: &record{}, t: t, key: "chaos " + crand.Text(), limits: limits,
		late: measure(t), events: map[store.StoreEventKind]int{},
	}
	f.tolerance = min(max(time.Duration(1e8/limits[0].LeakRate), 5*time.Millisecond), 50*time.Millisecond)
	f.ctx, f.cancel = context.WithCancel(t.Context())
	t.Cleanup(f.stop)
	return f
}

// add starts a worker.
func (f *fleet) add(rdb redis.UniversalClient, r role) *member {
	f.t.Helper()
	if r.limits == nil {
		r.limits = f.limits
	}
	if r.callers == 0 {
		r.callers = 3
	}
	if r.tolerance == 0 {
		r.tolerance = f.tolerance
	}
	m := &member{}
	w, err := newWorker(rdb, f.key, r, f.record, f.observe)
	require.NoError(f.t, err)
	m.worker = w
	w.call = func() {
		m.calls.Add(time.Now(), 1)
		f.arrive()
	}
	for range r.callers {
		f.wg.Go(func() { w.work(f.ctx) })
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, m)
	return m
}

// addSome starts n equal workers.
func (f *fleet) addSome(n int, client func() redis.UniversalClient, r role) {
	f.t.Helper()
	for range n {
		f.add(client(), r)
	}
}

// fleets are fleets that meet the same faults, each with a limit of its own. So none hides what a
// fault costs of another.
type fleets []*fleet

func newFleets(t *testing.T, limits ...outbound.Limit) fleets {
	var fs fleets
	for _, l := range limits {
		fs = append(fs, newFleet(t, l))
	}
	return fs
}

func (fs fleets) addSome(n int, client func() redis.UniversalClient, r role) {
	for _, f := range fs {
		f.t.Helper()
		f.addSome(n, client, r)
	}
}

func (fs fleets) run(d time.Duration) { fs[0].run(d) }

// goesOn waits until each API has seen n more calls, and returns how long that took.
func (fs fleets) goesOn(n int) time.Duration {
	from := time.Now()
	var want []int
	for _, f := range fs {
		f.t.Helper()
		want = append(want, f.api.Arrivals().Len()+n)
	}
	for i, f := range fs {
		eventually(f.t, "calls go on", func() bool { return f.api.Arrivals().Len() >= want[i] })
	}
	return time.Since(from)
}

func (fs fleets) check(c cost) {
	for _, f := range fs {
		f.t.Helper()
		f.check(c)
	}
}

func (fs fleets) checkBoth(reservations, calls cost) {
	for _, f := range fs {
		f.t.Helper()
		f.checkBoth(reservations, calls)
	}
}

// arrive is a call to the API.
func (f *fleet) arrive() {
	req, err := http.NewRequest(http.MethodGet, "http://api.example/", nil)
	if err != nil {
		panic(err)
	}
	resp, err := f.api.RoundTrip(req)
	if err != nil {
		panic(err)
	}
	_ = resp.Body.Close() // the body is in memory
}

func (f *fleet) observe(e store.StoreEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[e.Kind]++
}

// count returns how many events of this kind the stores have reported.
func (f *fleet) count(k store.StoreEventKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events[k]
}

// stop ends the calls and waits for all workers.
func (f *fleet) stop() {
	f.cancel()
	f.wg.Wait()
	for _, m := range f.members {
		m.mu.Lock()
		require.NoError(f.t, m.odd)
		m.mu.Unlock()
	}
}

// run lets the fleet work for a time.
func (f *fleet) run(d time.Duration) { nap(f.ctx, d) }

// goesOn waits until the API has seen n more calls, and returns how long that took.
func (f *fleet) goesOn(n int) time.Duration {
	f.t.Helper()
	return goesOn(f.t, f.api.Arrivals(), n)
}

func goesOn(t *testing.T, calls *outboundtest.History, n int) time.Duration {
	t.Helper()
	from, have := time.Now(), calls.Len()
	eventually(t, "calls go on", func() bool { return calls.Len() >= have+n })
	return time.Since(from)
}

// eventually waits until so returns true.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "within "+patience.String()+" it did not come to it that "+what)
		}
	}
}

// times returns the times of the calls, in order.
func times(h *outboundtest.History) []time.Time {
	var all []time.Time
	for at := range h.All() {
		all = append(all, at)
	}
	return slices.Clip(all)
}

// check stops the fleet and checks all its reservations and calls, by each of its limits. c is what
// the faults may cost.
func (f *fleet) check(c cost) {
	f.t.Helper()
	f.checkBoth(c, c)
}

// checkBoth is check for faults that cost something else in bucket time (reservations) than
// by the API's clock (calls).
func (f *fleet) checkBoth(reservations, calls cost) {
	f.t.Helper()
	f.stop()
	for _, l := range f.limits {
		p := promiseOf(f.t, l)
		f.checkReservations(f.t, p, reservations(p))
		f.checkCalls(f.api.Arrivals(), p, calls(p))
	}
}

// losses is the cost of all lives of the bucket after the first. An interval of a window's length
// meets those that begin in it, or while workers still use the reservations of the one before.
func (f *fleet) losses() cost {
	var begun outboundtest.History
	for born := range f.lives() {
		begun.Add(time.Unix(0, 0).Add(born), 1)
	}
	return func(p promise) float64 {
		if p.window > 0 {
			return begun.Worst(p.window+replyUse).Units * emptied(p)
		}
		return float64(begun.Len()-1) * emptied(p)
	}
}

// checkCalls fails the test if calls break a promise by more than slack, beyond what the
// tolerance of the queues and the lateness of the machine explain.
func (f *fleet) checkCalls(h *outboundtest.History, p promise, slack float64) {
	f.t.Helper()
	checkCalls(f.t, h, p, slack, func(at time.Time) time.Duration { return f.tolerance + f.late.of(at) })
}

func checkCalls(t *testing.T, h *outboundtest.History, p promise, slack float64, early func(time.Time) time.Duration) {
	t.Helper()
	all := times(h)
	var latest time.Duration
	over := unexplained(all, p, func(at time.Time) time.Duration {
		e := early(at)
		latest = max(latest, e)
		return e
	})
	t.Logf("calls: %d; %.3f above %v, %.3f of that unexplained by lateness of up to %v; %.3f allowed",
		len(all), p.excess(h), p, over, latest.Round(10*time.Microsecond), slack)
	require.LessOrEqual(t, over, slack+rounding, "more calls than the limit allows: %v", p.check(h, slack))
}

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
