//go:build linux

package chaos

import (
	"context"
	crand "crypto/rand"
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
)

// patience bounds a wait that would otherwise hang. Nothing else depends on it.
const patience = 2 * time.Minute

// fleet is a set of workers in this process, each with a store and a client of its
// own. They share a bucket, and call an API that only records the time of each call.
type fleet struct {
	*record
	t         *testing.T
	key       string
	limit     outbound.Limit
	tolerance time.Duration
	api       outboundtest.API
	late      *lateness
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu      sync.Mutex
	members []*member
	events  map[redisstore.EventKind]int
}

// member is a worker of a fleet, with its calls.
type member struct {
	*worker
	calls outboundtest.History
}

func newFleet(t *testing.T, limit outbound.Limit) *fleet {
	f := &fleet{
		record: &record{}, t: t, key: "chaos " + crand.Text(), limit: limit,
		late: measure(t), events: map[redisstore.EventKind]int{},
	}
	f.tolerance = min(max(time.Duration(1e8/limit.LeakRate), 5*time.Millisecond), 50*time.Millisecond)
	f.ctx, f.cancel = context.WithCancel(t.Context())
	t.Cleanup(f.stop)
	return f
}

// add starts a worker.
func (f *fleet) add(rdb redis.UniversalClient, r role) *member {
	f.t.Helper()
	if r.limit == nil {
		r.limit = &f.limit
	}
	if r.callers == 0 {
		r.callers = 3
	}
	if r.tolerance == 0 {
		r.tolerance = f.tolerance
	}
	w, err := newWorker(rdb, f.key, r, f.record, f.observe)
	require.NoError(f.t, err)
	m := &member{worker: w}
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

func (f *fleet) observe(e redisstore.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[e.Kind]++
}

// heard returns how often the workers were told an event of this kind.
func (f *fleet) heard(k redisstore.EventKind) int {
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

// check stops the fleet and checks all its places and calls. slack is what the faults
// may cost, in units.
func (f *fleet) check(slack float64) {
	f.t.Helper()
	f.checkBoth(slack, slack)
}

// checkBoth is check for faults that cost something else in bucket time (places) than
// by the API's clock (calls).
func (f *fleet) checkBoth(places, calls float64) {
	f.t.Helper()
	f.stop()
	f.checkPlaces(f.t, f.limit, places)
	f.checkCalls(f.api.Arrivals(), f.limit, calls)
}

// checkCalls fails the test if calls break a limit by more than slack, beyond what the
// tolerance of the queues and the lateness of the machine explain.
func (f *fleet) checkCalls(h *outboundtest.History, l outbound.Limit, slack float64) {
	f.t.Helper()
	checkCalls(f.t, h, l, slack, func(at time.Time) time.Duration { return f.tolerance + f.late.of(at) })
}

func checkCalls(t *testing.T, h *outboundtest.History, l outbound.Limit, slack float64, early func(time.Time) time.Duration) {
	t.Helper()
	all := times(h)
	var latest time.Duration
	over := unexplained(all, l, func(at time.Time) time.Duration {
		e := early(at)
		latest = max(latest, e)
		return e
	})
	t.Logf("calls: %d; %.3f above the limit of %v + %v/s, %.3f of that unexplained by lateness of up to %v; %.3f allowed",
		len(all), excess(h, l), l.Capacity, l.LeakRate, over, latest.Round(10*time.Microsecond), slack)
	require.LessOrEqual(t, over, slack+rounding, "more calls than the limit allows: %v", h.Check(l.Capacity, l.LeakRate, slack))
}

// A worker uses a reply for up to 25 ms. It books up to 100 ms ahead, and a trip or
// two more.
const (
	hearing = 25 * time.Millisecond
	ahead   = 150 * time.Millisecond
)

// emptied is the cost of a bucket that is found empty: one more capacity, and the
// places that workers use before they hear of it.
func emptied(l outbound.Limit) float64 { return l.Capacity + l.LeakRate*hearing.Seconds() }

// forgotten is the highest cost of forgetting the last charges: they are at most a
// full bucket, and the bookings ahead of it.
func forgotten(l outbound.Limit) float64 { return l.Capacity + l.LeakRate*ahead.Seconds() }
