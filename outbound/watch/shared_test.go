package watch

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	contract "github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Two names around one shared bucket each show what is their own.
func TestNamesThatShareABucketShowTheirOwnQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		one := shared(t, &watchedStore{Memory: contract.NewMemory()}, "k", outbound.PerMinute(1))
		b.Add("bucket", one)
		l := b.Add("queue", queue.New(one, queue.Config{}))
		ctx, cancel := context.WithCancel(bg)
		for range 3 {
			go func() { _, _ = l.Acquire(ctx, outbound.Cost{1}) }()
		}
		time.Sleep(time.Second)
		for _, s := range b.Snapshot(bg, Query{}).Limiters {
			if want := map[string]int{"bucket": 0, "queue": 2}[s.Name]; s.Explain.Ahead != want {
				t.Errorf("%s: %d are ahead, want %d", s.Name, s.Explain.Ahead, want)
			}
		}
		cancel()
	})
}

// errStore fails with an error.
type errStore struct {
	watchedStore
	err atomic.Pointer[error]
}

// failing returns a store that fails with an error, or works as long as that is nil.
func failing(err error) *errStore {
	s := &errStore{watchedStore: watchedStore{Memory: contract.NewMemory()}}
	s.fail(err)
	return s
}

func (s *errStore) fail(err error) { s.err.Store(&err) }

func (s *errStore) Update(ctx context.Context, key string, op *contract.Op) (contract.Reply, error) {
	err := *s.err.Load()
	if err == nil {
		return s.watchedStore.Update(ctx, key, op)
	}
	s.trips.Add(1)
	return contract.Reply{}, err
}

// A store that fails is asked once a second, however many look, and its error does not show the key.
func TestShared_FailingStoreIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := failing(errors.New(`row "secret-key" is locked`))
		b.Add("api", shared(t, store, "secret-key", outbound.PerSecond(1)))
		for range 10 {
			if l := only(t, &b); l.Severity != Stopped || strings.Contains(string(jsonOf(t, l)), "secret") || !strings.Contains(l.Err, "is locked") {
				t.Errorf("%+v", l)
			}
		}
		if n := store.trips.Load(); n != 1 {
			t.Errorf("%d trips within a second", n)
		}
	})
}

// What is left of a hold passes while the store is unavailable, and no metric has an unknown value.
func TestShared_OldStateIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := failing(nil)
		one := shared(t, store, "k", outbound.PerSecond(1))
		b.Add("api", one)
		if err := one.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		if l := only(t, &b); l.HeldFor != time.Hour {
			t.Fatalf("held for %v", l.HeldFor)
		}
		store.fail(contract.ErrUnavailable)
		time.Sleep(50 * time.Second)
		if l := only(t, &b); l.HeldFor != 59*time.Minute+10*time.Second || !strings.Contains(l.Trouble[0], "50 s old") {
			t.Errorf("held for %v: %q", l.HeldFor, l.Trouble)
		}
		text := metricsOf(&b)
		for _, gone := range []string{"hold_remaining_seconds{", "speed{", "limit_level{"} {
			if strings.Contains(text, gone) {
				t.Errorf("a metric tells %s of a state from 50 s ago", gone)
			}
		}
	})
}

// explaining is a limiter of somebody's own.
type explaining struct {
	limiterFunc
	bucket  *outbound.Bucket
	explain func() (outbound.Explanation, error)
}

func (e *explaining) Bucket() *outbound.Bucket { return e.bucket }

func (e *explaining) Explain(context.Context, outbound.Cost) (outbound.Explanation, error) {
	return e.explain()
}

// A limiter that panics when it is asked does not end the program, nor hold later looks up.
func TestALimiterThatPanicsIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, one := range []*outbound.Bucket{shared(t, contract.NewMemory(), "k", outbound.PerSecond(1)), bucket(t, outbound.PerSecond(1))} {
			var b Board
			x := &explaining{bucket: one, explain: func() (outbound.Explanation, error) { panic("own") }}
			b.Add("api", x)
			if l := only(t, &b); l.Err == "" {
				t.Errorf("%+v", l)
			}
			x.explain = func() (outbound.Explanation, error) { return outbound.Explanation{}, nil }
			time.Sleep(time.Second)
			if l := only(t, &b); l.Err != "" || l.Explain == nil {
				t.Errorf("%+v", l)
			}
		}
	})
}

// Looks at the same time make one request to a store that hangs, and wait no longer than a look may
// take.
func TestShared_LooksAtAHungStoreShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := &watchedStore{Memory: contract.NewMemory()}
		store.hangs.Store(true)
		b.Add("api", shared(t, store, "k", outbound.PerSecond(1)))
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 20 {
			time.Sleep(10 * time.Millisecond)
			all.Go(func() {
				if i%2 == 0 {
					metricsOf(&b)
				} else if l := only(t, &b); l.Err != "no answer within 800ms" || l.Severity != Stopped {
					t.Errorf("%+v", l)
				}
			})
		}
		all.Wait()
		if n := store.trips.Load(); n != 1 || time.Since(begin) > patience+10*time.Millisecond {
			t.Errorf("%d requests, %v", n, time.Since(begin))
		}
	})
}

// States that nobody looks at are forgotten.
func TestStatesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		keyed := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return outbound.NewSharedBucket(contract.NewMemory(), key, outbound.PerSecond(1))
		}}
		of := AddKeyed(&b, "api", keyed, func(key string) string { return "key " + key })
		for i := range 20 {
			_, _ = of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1})
		}
		b.Snapshot(bg, Query{})
		if n := len(b.shown[0].states); n != 20 {
			t.Errorf("%d states are remembered", n)
		}
		time.Sleep(2 * time.Minute)
		b.Snapshot(bg, Query{Search: "key 7"})
		if n := len(b.shown[0].states); n != 1 {
			t.Errorf("%d states are remembered", n)
		}
	})
}

// A look whose request has ended blames no store, and learns nothing less.
func TestShared_CancelledLookBlamesNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		b.Add("api", shared(t, contract.NewMemory(), "k", outbound.PerSecond(1)))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if l := b.Snapshot(ctx, Query{}).Limiters[0]; l.Severity != Calm || l.Err != "" || l.Explain == nil {
			t.Errorf("%+v", l)
		}
	})
}

// What is no store's fault is not called so.
func TestALimiterWithoutAStoreBlamesNone(t *testing.T) {
	var b Board
	b.Add("api", queue.New(bucket(t, outbound.PerSecond(1)), queue.Config{MaxLen: -1}))
	l := only(t, &b)
	if text := strings.Join(l.Trouble, " "); l.Severity != Stopped || strings.Contains(text, "store") || !strings.Contains(text, "invalid argument") {
		t.Errorf("%+v", l)
	}
	var none *queue.Queue
	b.Add("none", none)
	if n := len(b.Snapshot(bg, Query{}).Limiters); n != 2 {
		t.Errorf("%d are shown", n)
	}
}
