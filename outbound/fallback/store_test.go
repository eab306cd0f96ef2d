package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// link is the way to a store. While it is cut, each trip fails after a while.
type link struct {
	leak.Store
	mu    sync.Mutex // protects what follows
	cut   bool
	hangs time.Duration
	trips int
}

var errCut = fmt.Errorf("%w: connection refused", outbound.ErrAway)

func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trips
}

func (l *link) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	l.mu.Lock()
	l.trips++
	cut, hangs := l.cut, l.hangs
	l.mu.Unlock()
	if !cut {
		return l.Store.Update(ctx, key, op)
	}
	if hangs > 0 { // a timer of no time at all may crash a bubble under the race detector
		select {
		case <-time.After(hangs):
		case <-ctx.Done():
			return leak.Reply{}, ctx.Err()
		}
	}
	return leak.Reply{}, errCut
}

var background = context.Background()

// worker is a worker of a fleet, with a bucket of a fallback.Store.
type worker struct {
	*testing.T
	*link
	f   *fallback.Store
	b   *outbound.Bucket
	out outboundtest.History
}

func newWorker(t *testing.T, s leak.Store, f *fallback.Store, limits ...outbound.Limit) *worker {
	w := &worker{T: t, link: &link{Store: s}, f: f}
	f.Store = w.link
	w.b = outbound.Must(outbound.NewSharedBucket(f, "key", limits...))
	return w
}

// take acquires as often as there is room, at most 1000 times.
func (w *worker) take(c outbound.Cost) (n int) {
	w.Helper()
	for ; n < 1000; n++ {
		p, err := w.b.Acquire(background, c)
		if errors.Is(err, outbound.ErrThrottled) {
			return n
		}
		if err != nil {
			w.Fatal(err)
		}
		w.out.Add(time.Now(), c[0])
		p.Done()
	}
	return n
}

func (w *worker) level(want float64) {
	w.Helper()
	if s, err := w.b.State(background); err != nil || math.Abs(s.Level-want) > 1e-5 {
		w.Errorf("level %v, %v; want %v", s.Level, err, want)
	}
}

func TestAFallbackPassesTheExamWhileItsStoreIsThere(t *testing.T) {
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check(t, &fallback.Store{Store: leak.NewMemory(), Share: 0.5})
			})
		})
	}
}

func TestWithoutAShareCallsFailAndFewWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{}, outbound.Limit{Capacity: 10, LeakRate: 10})
		w.take(outbound.Cost{1})
		w.set(true)
		w.hangs = time.Second
		begin := time.Now()
		slow := 0
		before := w.count()
		for time.Since(begin) < time.Minute {
			asked := time.Now()
			_, err := w.b.Acquire(background, outbound.Cost{1})
			var broken *outbound.StoreError
			if !errors.As(err, &broken) || !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			if time.Since(asked) > 0 {
				slow++
			}
			time.Sleep(time.Millisecond)
		}
		// 0.1, 0.2, 0.4, 0.8, 1 s lie between the tries, less a random part, and each takes a
		// second.
		if n := w.count() - before; n != slow || n < 30 || n > 42 {
			t.Errorf("%d tries, and %d calls that waited, in a minute", n, slow)
		}
		w.set(false)
		time.Sleep(time.Second)
		if n := w.take(outbound.Cost{1}); n != 10 {
			t.Errorf("%d went after the store was back, want 10", n)
		}
	})
}

func TestACallThatGivesUpDoesNotTakeTheStoreForAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 1}, outbound.Limit{Capacity: 10, LeakRate: 10})
		w.f.OnSwitch = func(away bool, err error) { t.Errorf("away %v: %v", away, err) }
		w.set(true)
		w.hangs = time.Second
		short, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		if _, err := w.b.Acquire(short, outbound.Cost{1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		w.set(false)
		if n := w.take(outbound.Cost{1}); n != 10 {
			t.Errorf("%d went", n)
		}
	})
}

func TestAShareIsAPartOfEveryLimitAndBeginsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.25},
			outbound.Limit{Capacity: 40, LeakRate: 8}, outbound.Limit{Capacity: 2, LeakRate: 4, Unit: 1, Name: "small"})
		var mu sync.Mutex // protects told
		var told []string
		w.f.OnSwitch = func(away bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(away, " ", err))
		}
		switches := func() string {
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprint(told)
		}
		if n := w.take(outbound.Cost{2}); n != 20 {
			t.Fatalf("%d went", n)
		}
		w.set(true)
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d went at the switch", n)
		}
		time.Sleep(time.Second)
		if n := w.take(outbound.Cost{1}); n != 2 {
			t.Errorf("%d went after a second, want 2", n)
		}
		time.Sleep(time.Minute)
		if n := w.take(outbound.Cost{1, 0.5}); n != 2 { // each worker has at least one unit
			t.Errorf("%d of half a unit, want 2", n)
		}
		if n := w.take(outbound.Cost{1}); n != 8 {
			t.Errorf("%d went after a pause, want the rest of 10", n)
		}
		// A cost above the share, but not above the limit, can go later.
		_, err := w.b.Acquire(background, outbound.Cost{11})
		if errors.Is(err, outbound.ErrTooLarge) || !errors.Is(err, errCut) {
			t.Errorf("11 units: %v", err)
		}
		if _, err := w.b.Acquire(background, outbound.Cost{41}); !errors.Is(err, outbound.ErrTooLarge) {
			t.Errorf("41 units: %v", err)
		}
		if ok, err := w.b.AbleToAccept(background, outbound.Cost{1}); ok || err != nil {
			t.Errorf("able to accept: %v, %v", ok, err)
		}
		for name, err := range map[string]error{"Resume": w.b.Resume(background), "SetLimits": w.b.SetLimits(background, outbound.PerSecond(1))} {
			if !errors.Is(err, errCut) {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.set(false)
		time.Sleep(2900 * time.Millisecond)
		if n := w.take(outbound.Cost{1}); n == 0 || n > 10 {
			t.Errorf("%d went, want what is left of its share", n)
		}
		if got := switches(); got != "[true outbound: the store is away: connection refused]" {
			t.Error(got)
		}
		time.Sleep(3200 * time.Millisecond)
		synctest.Wait()
		if got := switches(); got != "[true outbound: the store is away: connection refused false <nil>]" {
			t.Error(got)
		}
	})
}

// asked is a store that counts the operations on each key.
type asked struct {
	leak.Store
	mu   sync.Mutex // protects keys
	keys map[string]int
}

func (a *asked) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	a.mu.Lock()
	a.keys[key]++
	a.mu.Unlock()
	return a.Store.Update(ctx, key, op)
}

// take returns the counts since its last call.
func (a *asked) take() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.keys
	a.keys = map[string]int{}
	return keys
}

// No bucket has the key under which workers agree on their return, whatever its name.
func TestNoBucketHasTheMeetingKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := &link{Store: leak.NewMemory(), cut: true}
		store := &asked{Store: way, keys: map[string]int{}}
		f := &fallback.Store{Store: store, Share: 0.5}
		b := outbound.Must(outbound.NewSharedBucket(f, "tenant", outbound.PerSecond(1)))
		if _, err := b.Acquire(background, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatal(err) // the bucket begins full
		}
		time.Sleep(time.Second)
		way.set(false)
		time.Sleep(10 * time.Second)
		keys := store.take()
		if len(keys) != 2 {
			t.Fatal(keys)
		}
		delete(keys, "tenant")
		var meeting string
		for meeting = range keys {
		}
		tenants := []string{"", meeting, meeting + "\x00", meeting + "\x00\x00", meeting + "x", "\x00"}
		for _, key := range tenants {
			b := outbound.Must(outbound.NewSharedBucket(f, key, outbound.PerSecond(1)))
			if _, err := b.Acquire(background, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		if keys = store.take(); keys[meeting] > 0 || len(keys) != len(tenants) {
			t.Error(keys)
		}
	})
}
