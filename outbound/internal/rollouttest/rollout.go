// Package rollouttest has fleets of processes that share a store, for the tests of stores: of two
// releases that run next to each other, and with calls in flight.
package rollouttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Fleet is processes that share a store.
type Fleet struct {
	// Open opens the store for another process.
	Open func(t testing.TB) store.Store
	// For is how long old and new processes run next to each other.
	For time.Duration
	// Tenants is how many keys each process of [Fleet.Keyed] uses.
	Tenants int

	mu      sync.Mutex
	changes map[string]int // of limits, by key and process
	started time.Duration  // how long ago the latest process says that it has started
}

// process is a store of a process of its own.
type process struct {
	store.Store
	fleet   *Fleet
	name    string
	started time.Time
}

// start starts a process. Each says that it has started a minute after the one before.
func (f *Fleet) start(t testing.TB, name string) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changes == nil {
		f.changes, f.started = map[string]int{}, 1000*time.Minute
	}
	f.started -= time.Minute
	return &process{f.Open(t), f, fmt.Sprintf("%s (%v ago)", name, f.started), time.Now().Add(-f.started)}
}

// Update carries out a step with the age of the process, and counts the changes of limits.
func (p *process) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	op.Age = time.Since(p.started)
	r, err := p.Store.Update(ctx, key, op)
	if op.Action == store.Replace && !r.Stale && err == nil && r.Number != op.Number {
		p.fleet.mu.Lock()
		p.fleet.changes[key+" by "+p.name]++
		p.fleet.mu.Unlock()
	}
	return r, err
}

func (p *process) bucket(t testing.TB, key string, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewSharedBucket(p, key, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// call is a call that was admitted between these times.
type call struct{ sent, arrived time.Time }

// history are the admitted calls of a fleet. A call counts in an interval if all of the time
// between its request and its reply is in it: it does not matter how long requests take.
type history struct {
	mu   sync.Mutex
	all  []call
	errs []error
}

func (h *history) add(c call, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.all = append(h.all, c)
	} else if !refused(err) {
		h.errs = append(h.errs, err)
	}
}

// refused reports whether a limit has refused a call, or a machine that stalls. After two replies
// that come 25 ms late each, a bucket returns what it has booked.
func refused(err error) bool {
	late, ok := errors.AsType[*outbound.StoreError](err)
	return errors.Is(err, outbound.ErrThrottled) || ok && strings.HasSuffix(late.Err.Error(), "too late to be used")
}

// check fails the test if in any interval that begins at from or later more calls were admitted
// than capacity and rate allow.
func (h *history) check(t testing.TB, what string, from time.Time, capacity, rate float64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, err := range h.errs {
		t.Error(err)
	}
	bySent := slices.DeleteFunc(slices.Clone(h.all), func(c call) bool { return c.sent.Before(from) })
	slices.SortFunc(bySent, func(a, b call) int { return a.sent.Compare(b.sent) })
	if len(bySent) < int(capacity) {
		t.Errorf("%s: only %d calls were admitted", what, len(bySent))
	}
	byArrival := slices.Clone(bySent)
	slices.SortFunc(byArrival, func(a, b call) int { return a.arrived.Compare(b.arrived) })
	for _, first := range bySent {
		n := 0
		for _, c := range byArrival {
			if c.sent.Before(first.sent) {
				continue
			}
			n++
			// A thousandth is for clocks that do not run alike.
			if w := c.arrived.Sub(first.sent); float64(n) > capacity+rate*1.001*w.Seconds()+0.01 {
				t.Errorf("%s: %d calls were admitted within %v, by a capacity of %v and %v per second", what, n, w, capacity, rate)
				return
			}
		}
	}
}

// calls lets callers of a bucket ask again and again until stop is closed, and the history record
// what is admitted.
func (h *history) calls(all *sync.WaitGroup, b *outbound.Bucket, stop <-chan struct{}) {
	for range 3 {
		all.Go(func() {
			for {
				sent := time.Now()
				_, err := b.Acquire(context.Background(), outbound.Cost{1})
				h.add(call{sent, time.Now()}, err)
				select {
				case <-stop:
					return
				case <-time.After(5*time.Millisecond + rand.N(15*time.Millisecond)):
				}
			}
		})
	}
}

// Beside runs old and new processes with other limits next to each other. At each moment no more
// leaves than the larger capacity and the higher rate allow, and by the limits of the newest
// process once it has called.
func (f *Fleet) Beside(t *testing.T) {
	const key = "beside"
	early, late := outbound.Limit{Capacity: 30, LeakRate: 40}, outbound.Limit{Capacity: 10, LeakRate: 80}
	var h history
	var all sync.WaitGroup
	done := make(chan struct{})
	stop := sync.OnceFunc(func() {
		close(done)
		all.Wait()
	})
	defer stop()
	run := func(name string, limit outbound.Limit) (b *outbound.Bucket, first time.Time) {
		b = f.start(t, name).bucket(t, key, limit)
		sent := time.Now()
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		first = time.Now()
		h.add(call{sent, first}, err)
		h.calls(&all, b, done)
		return b, first
	}
	olds := []*outbound.Bucket{}
	for range 2 {
		b, _ := run("old", early)
		olds = append(olds, b)
	}
	time.Sleep(f.For / 4)
	_, first := run("new", late)
	run("new", late)
	time.Sleep(max(f.For/4, 1100*time.Millisecond))
	for _, b := range olds {
		if got := b.Limits(); len(got) != 1 || got[0].Capacity != late.Capacity || got[0].LeakRate != late.LeakRate {
			t.Errorf("an old process has %v, a second after a new one has called", got)
		}
	}
	h.check(t, "the new limits", first, late.Capacity, late.LeakRate)
	run("old that starts late", early) // wins until the next new one starts
	time.Sleep(f.For / 4)
	_, again := run("newer", late)
	time.Sleep(max(f.For/4, 1100*time.Millisecond))
	stop()
	h.check(t, "the new limits again", again, late.Capacity, late.LeakRate)
	h.check(t, "both", time.Time{}, early.Capacity, late.LeakRate)
	f.once(t, key, 3)
}

// once checks that each process has changed the limits of a key at most once, and all together so
// often as they had to.
func (f *Fleet) once(t testing.TB, prefix string, most int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for who, n := range f.changes {
		if strings.HasPrefix(who, prefix) {
			if sum += n; n > 1 {
				t.Errorf("%d changes of %s", n, who)
			}
		}
	}
	if sum > most {
		t.Errorf("%d changes of %s, want %d at most", sum, prefix, most)
	}
}

// Restarts checks that limits which an operator has set hold through restarts of the same program,
// and not through another release, and that an event reports each change.
func (f *Fleet) Restarts(t *testing.T) {
	const key = "restarts"
	ten, five, seven := outbound.PerSecond(10), outbound.PerSecond(5), outbound.PerSecond(7)
	start := func(name string, limit outbound.Limit) *outbound.Bucket {
		return f.start(t, name).bucket(t, key, limit)
	}
	is := func(b *outbound.Bucket, want outbound.Limit) {
		t.Helper()
		// A process relies on a refusal that it remembers for a second at most.
		for until := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			if _, err := b.State(t.Context()); err != nil {
				t.Error(err)
			}
			got := b.Limits()
			if len(got) == 1 && got[0].String() == want.String() {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("by %v, want %v", got, want)
			}
		}
	}
	watcher := start("1.0", ten)
	var mu sync.Mutex
	var events []string
	defer watcher.Observe(func(e outbound.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%s: %s -> %s", e.Kind, e.Before, e.Limits))
	})()
	is(watcher, ten)
	if err := start("1.0 and an operator", ten).SetLimits(t.Context(), seven); err != nil {
		t.Fatal(err)
	}
	is(watcher, seven)
	for range 3 {
		is(start("1.0 again", ten), seven)
	}
	is(watcher, seven)
	is(start("2.0", five), five)
	is(watcher, five)
	is(start("1.0 again, with limits of its own", ten), ten)
	is(watcher, ten)
	want := []string{"limits: 10 per 1s -> 7 per 1s", "limits: 7 per 1s -> 5 per 1s", "limits: 5 per 1s -> 10 per 1s"}
	await(t, fmt.Sprintf("the events are %q", want), func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(events, want)
	})
	f.once(t, key, 3)
}

// Keyed checks how often processes of two releases change the limits of a tenant. They forget
// tenants, and make their buckets again. Each changes the limits at most once. All together change
// them no more often than a newer release starts.
func (f *Fleet) Keyed(t *testing.T) {
	const prefix = "tenant "
	run := func(all *sync.WaitGroup, name string, limit outbound.Limit) {
		p := f.start(t, name)
		k := &outbound.Keyed[int]{Max: max(1, f.Tenants/5), New: func(tenant int) (outbound.Limiter, error) {
			return outbound.NewSharedBucket(p, fmt.Sprint(prefix, tenant, "."), limit)
		}}
		for range 4 {
			all.Go(func() {
				for range 3 * f.Tenants / 4 {
					permit, err := k.Acquire(context.Background(), rand.IntN(f.Tenants), outbound.Cost{1})
					if err != nil && !refused(err) {
						t.Error(err)
					}
					permit.Done()
					time.Sleep(rand.N(2 * time.Millisecond))
				}
			})
		}
	}
	var all sync.WaitGroup
	old, young := outbound.Limit{Capacity: 1000, LeakRate: 0.1}, outbound.Limit{Capacity: 2000, LeakRate: 0.1}
	run(&all, "old", old)
	run(&all, "old", old)
	run(&all, "new", young)
	run(&all, "new", young)
	all.Wait()
	for i := range f.Tenants {
		f.once(t, fmt.Sprint(prefix, i, "."), 1)
	}
	f.mu.Lock()
	changed := len(f.changes)
	f.mu.Unlock()
	if changed == 0 {
		t.Error("no limits were changed")
	}
}

// Test makes all checks.
func (f *Fleet) Test(t *testing.T) {
	for name, check := range map[string]func(*testing.T){"beside": f.Beside, "restarts": f.Restarts, "keyed": f.Keyed} {
		t.Run(name, check)
	}
}
