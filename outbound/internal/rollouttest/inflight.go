package rollouttest

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Callers make calls in several processes that share a limit on calls in flight.
type Callers struct {
	slots     int
	lease     time.Duration
	stop      func()
	inFlight  atomic.Int64
	processes []*caller

	mu        sync.Mutex
	histories []*outboundtest.Calls
	key       string // of the slots in the store
}

// caller is a process of Callers.
type caller struct {
	made  atomic.Int64              // calls that have ended
	asked atomic.Pointer[time.Time] // when its last answered ask was sent
}

// StartCallers starts a process for each store, each with four callers, until the test ends.
func StartCallers(t testing.TB, slots int, lease time.Duration, stores []store.Store) *Callers {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	f := &Callers{slots: slots, lease: lease, histories: []*outboundtest.Calls{{}}}
	f.stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(f.stop)
	for i, s := range stores {
		p := new(caller)
		f.processes = append(f.processes, p)
		name := strconv.Itoa(i)
		b, err := outbound.NewSharedBucket(&Asks{Store: s, Reached: func(key string, at time.Time) {
			p.asked.Store(&at)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.key = key
			for _, h := range f.histories {
				h.Reached(name, at)
			}
		}}, "fleet", outbound.InFlight(slots).Lease(lease))
		if err != nil {
			t.Fatal(err)
		}
		q := queue.New(b, queue.Config{})
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					permit, err := q.Acquire(ctx, outbound.Cost{1})
					if err != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					f.mu.Lock()
					h, begin := f.histories[len(f.histories)-1], time.Now()
					f.mu.Unlock()
					f.inFlight.Add(1)
					time.Sleep(10*time.Millisecond + rand.N(40*time.Millisecond)) // a call
					f.inFlight.Add(-1)
					h.Add(name, begin, time.Now())
					p.made.Add(1)
					permit.Done()
				}
			})
		}
	}
	return f
}

// Key returns the key of the slots in the store.
func (f *Callers) Key() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.key
}

// Full waits until as many calls are in flight as there are slots.
func (f *Callers) Full(t testing.TB) {
	t.Helper()
	await(t, "all slots are in use", func() bool { return int(f.inFlight.Load()) == f.slots })
}

// AllGoOn waits until each process has made n more calls.
func (f *Callers) AllGoOn(t testing.TB, n int64) {
	t.Helper()
	for _, p := range f.processes {
		want := p.made.Load() + n
		await(t, "a process makes calls", func() bool { return p.made.Load() >= want })
	}
}

// AllAsk waits until each process has an answer to an ask that it sends from now on.
func (f *Callers) AllAsk(t testing.TB) {
	t.Helper()
	now := time.Now()
	for _, p := range f.processes {
		await(t, "a process asks", func() bool { at := p.asked.Load(); return at != nil && at.After(now) })
	}
}

func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("within a minute it did not come to it that " + what)
		}
	}
}

// Split checks the calls that begin from now on apart from those before.
func (f *Callers) Split() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.histories = append(f.histories, new(outboundtest.Calls))
}

// Check ends the calls, and checks that there were never more in flight than the limit allows.
// Between two Splits there may be as many more as lost has, for a store that has lost grants.
func (f *Callers) Check(t testing.TB, lost ...int) {
	t.Helper()
	f.stop()
	for i, h := range f.histories {
		most, _ := h.Most(Silence(f.lease))
		t.Logf("%d calls, %d in flight at most", h.Len(), most)
		allowed := f.slots
		if i < len(lost) {
			allowed += lost[i]
		}
		if err := h.Check(allowed, Silence(f.lease)); err != nil {
			t.Error(err)
		}
	}
}

// Silence is for how long a process keeps the slots of its calls without an answer of the store.
func Silence(lease time.Duration) time.Duration { return lease * 5 / 6 }

// Asks is a store that reports when each answered ask for slots was sent.
type Asks struct {
	store.Store
	Reached func(key string, sent time.Time)
}

// Update implements [store.Store].
func (a *Asks) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	sent := time.Now()
	r, err := a.Store.Update(ctx, key, op)
	if err == nil && op.Action == store.Allot {
		a.Reached(key, sent)
	}
	return r, err
}
