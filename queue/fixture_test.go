package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const ms = time.Millisecond

var (
	bg  = context.Background()
	one = outbound.Cost{1}
)

// long makes simulations longer than in CI.
var long = os.Getenv("DRIPFEED_LONG") != ""

// notRaced leaves a long simulation of what other tests race to the run without the race detector.
func notRaced(t *testing.T) {
	t.Helper()
	if raced {
		t.Skip("runs without the race detector only")
	}
}

// pass lets time pass, and returns when all goroutines that it has woken wait again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// noError fails the test if there is an error. Any goroutine may call it.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// bucket returns a bucket in memory.
func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	t.Helper()
	b, err := outbound.NewBucket("test", limits...)
	must(t, err)
	return b
}

// shared returns a bucket in a store.
func shared(t testing.TB, s store.Store, limits ...outbound.Limit) *outbound.Bucket {
	t.Helper()
	b, err := outbound.NewSharedBucket(s, "k", limits...)
	must(t, err)
	return b
}

// wantLevel checks the level of the first limit of a bucket.
func wantLevel(t testing.TB, b *outbound.Bucket, want float64) {
	t.Helper()
	s, err := b.State(bg)
	errorIf(t, err != nil || s.Level != want, "level %v, %v; want %v", s.Level, err, want)
}

// bothWays calls f in a bubble with a bucket in memory, and in another with one in a store.
func bothWays(t *testing.T, limits []outbound.Limit, f func(t *testing.T, b *outbound.Bucket)) {
	t.Helper()
	t.Run("in memory", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, bucket(t, limits...)) }) })
	t.Run("shared", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, shared(t, store.NewMemory(), limits...)) })
	})
}

// admitted returns the permit of a call that the limiter admits.
func admitted(t testing.TB, l outbound.Limiter, units ...float64) outbound.Permit {
	t.Helper()
	var c outbound.Cost
	copy(c[:], units)
	p, err := l.Acquire(bg, c)
	must(t, err)
	return p
}

// call is a call in a goroutine of its own.
type call struct {
	cost outbound.Cost
	came time.Time
	end  atomic.Pointer[ended] // nil while the call waits
}

// ended is how a call has ended.
type ended struct {
	left time.Time
	err  error
}

// ended returns how the call has ended, or zero.
func (c *call) ended() (e ended) {
	if p := c.end.Load(); p != nil {
		e = *p
	}
	return e
}

// come makes a call, and returns when it waits or has left. The call drops its permit.
func come(ctx context.Context, l outbound.Limiter, units ...float64) *call {
	return comeAndUse(ctx, l, func(*outbound.Permit) {}, units...)
}

// comeAndUse is come for a call that uses its permit, and may end it.
func comeAndUse(ctx context.Context, l outbound.Limiter, use func(*outbound.Permit), units ...float64) *call {
	c := &call{came: time.Now()}
	copy(c.cost[:], units)
	go func() {
		p, err := l.Acquire(ctx, c.cost)
		if c.end.Store(&ended{time.Now(), err}); err == nil {
			use(&p)
		}
	}()
	synctest.Wait()
	return c
}

// done ends a permit.
func done(p *outbound.Permit) { p.Done() }

// comeIn is come for a call that gives up after d.
func comeIn(t testing.TB, d time.Duration, l outbound.Limiter, units ...float64) *call {
	ctx, cancel := context.WithTimeout(bg, d)
	t.Cleanup(cancel)
	return come(ctx, l, units...)
}

// comeAll makes n calls, one after the other.
func comeAll(n int, ctx context.Context, l outbound.Limiter, units ...float64) (all calls) {
	for range n {
		all = append(all, come(ctx, l, units...))
	}
	return all
}

func (c *call) admitted() bool      { return c.end.Load() != nil && c.ended().err == nil }
func (c *call) took() time.Duration { return c.ended().left.Sub(c.came) }

// wantWait checks that the call was admitted after a wait of so long.
func (c *call) wantWait(t testing.TB, want time.Duration) {
	t.Helper()
	errorIf(t, !c.admitted() || c.took() != want, "the call has waited for %v, want %v: %v", c.took(), want, c.ended().err)
}

// refused returns the call's ThrottledError, or an empty one.
func (c *call) refused() *outbound.ThrottledError {
	full := new(outbound.ThrottledError)
	errors.As(c.ended().err, &full)
	return full
}

// calls are calls in the order of their arrival.
type calls []*call

// admitted returns how many have left, and whether in their order.
func (all calls) admitted() (n int, sorted bool) {
	var last time.Time
	sorted = true
	for _, c := range all {
		if c.admitted() {
			n++
			sorted = sorted && !c.ended().left.Before(last)
			last = c.ended().left
		}
	}
	return n, sorted
}

// p95 returns the 95th percentile of the waits of those that have left.
func (all calls) p95() time.Duration {
	var waits []time.Duration
	for _, c := range all {
		if c.admitted() {
			waits = append(waits, c.took())
		}
	}
	slices.Sort(waits)
	return waits[len(waits)*95/100]
}

// history returns what the calls have taken of a unit.
func (all calls) history(unit int) *outboundtest.History {
	h := new(outboundtest.History)
	for _, c := range all {
		if c.admitted() {
			h.Add(c.ended().left, c.cost[unit])
		}
	}
	return h
}

// loop keeps n calls in the queue until ctx ends, and counts those that have left. Each of them calls
// use, if that is not nil.
func loop(t *testing.T, ctx context.Context, l outbound.Limiter, n int, use func(*outbound.Permit)) *atomic.Int64 {
	var left atomic.Int64
	for range n {
		go func() {
			for ctx.Err() == nil {
				p, err := l.Acquire(ctx, one)
				if err != nil {
					errorIf(t, ctx.Err() == nil, "%v", err)
					return
				}
				if left.Add(1); use != nil {
					use(&p)
				}
				p.Done()
			}
		}()
	}
	return &left
}

// jain returns Jain's index of fairness: 1 if all shares are equal, and 1/n if one of n has all.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, n := range shares {
		sum, squares = sum+n, squares+n*n
	}
	return sum * sum / squares / float64(len(shares))
}

// far is a store at a distance that sometimes cannot be reached. Its replies have the time at which
// they were true, and how long replies normally take.
type far struct {
	store.Store
	way        time.Duration             // there, and the same back
	jitter     float64                   // a part of each way, added or taken at random
	first      int                       // the first request takes as long as so many, because it opens a connection
	late       func(n int) time.Duration // added to the way back of the n-th reply; nil: nothing
	unmeasured bool                      // its replies do not have how long they take
	trips      atomic.Int64
	away       atomic.Bool
	hangs      time.Duration                            // how long it takes to fail
	before     func(op *store.Op) error                 // may change or fail a request
	after      func(op *store.Op, r *store.Reply) error // may change or lose a reply
}

var errAway = fmt.Errorf("%w: connection refused", store.ErrUnavailable)

func (f *far) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	n := f.trips.Add(1)
	for range 2 * max(0, f.first-1) {
		if n == 1 {
			f.walk(0)
		}
	}
	f.walk(0)
	if f.away.Load() {
		time.Sleep(f.hangs)
		return store.Reply{}, errAway
	}
	if f.before != nil {
		if err := f.before(op); err != nil {
			return store.Reply{}, err
		}
	}
	when := time.Now()
	r, err := f.Store.Update(ctx, key, op)
	if r.When = when; !f.unmeasured {
		r.Received = when.Add(f.way + time.Duration(float64(f.way)*f.jitter))
	}
	if f.after != nil && err == nil {
		err = f.after(op, &r)
	}
	late := time.Duration(0)
	if f.late != nil {
		late = f.late(int(n))
	}
	f.walk(late)
	return r, err
}

func (f *far) walk(more time.Duration) {
	time.Sleep(more + time.Duration(float64(f.way)*(1+f.jitter*(2*rand.Float64()-1))))
}
