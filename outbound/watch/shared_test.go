package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
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
func TestAStoreThatFailsIsAskedOnceASecond(t *testing.T) {
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

// What is left of a hold passes while the store is away, and no metric tells what is not known.
func TestAnOldStateIsNotToldAsANewOne(t *testing.T) {
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

// A limiter that breaks when it is asked does not end the program, nor hold later looks up.
func TestALimiterThatBreaksIsAskedAgain(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("own") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Board
				x := &explaining{bucket: shared(t, contract.NewMemory(), "k", outbound.PerSecond(1))}
				x.explain = func() (outbound.Explanation, error) { end(); return outbound.Explanation{}, nil }
				b.Add("api", x)
				begin := time.Now()
				if l := only(t, &b); l.Err == "" || time.Since(begin) > 0 {
					t.Errorf("after %v: %+v", time.Since(begin), l)
				}
				x.explain = func() (outbound.Explanation, error) { return outbound.Explanation{}, nil }
				time.Sleep(time.Second)
				if l := only(t, &b); l.Err != "" || l.Explain == nil {
					t.Errorf("%+v", l)
				}
			})
		})
	}
}

// However rarely somebody looks, one trip to a store that hangs is under way.
func TestRareLooksAtAStoreThatHangsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := &watchedStore{Memory: contract.NewMemory()}
		store.hangs.Store(true)
		b.Add("api", shared(t, store, "k", outbound.PerSecond(1)))
		for range 20 {
			metricsOf(&b)
			time.Sleep(2 * time.Minute)
		}
		if n := store.trips.Load(); n != 1 {
			t.Errorf("%d trips are under way", n)
		}
		time.Sleep(time.Hour)
	})
}

// States that nobody looks at are forgotten.
func TestStatesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		for i := range 20 {
			b.Add("api "+strconv.Itoa(i), shared(t, contract.NewMemory(), strconv.Itoa(i), outbound.PerSecond(1)))
		}
		b.Snapshot(bg, Query{})
		time.Sleep(2 * time.Minute)
		b.Snapshot(bg, Query{Search: "api 7"})
		if n := len(b.states); n != 1 {
			t.Errorf("%d states are remembered", n)
		}
	})
}

// Whoever does not wait for a store learns nothing about it.
func TestALookThatIsBrokenOffBlamesNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := &watchedStore{Memory: contract.NewMemory()}
		store.hangs.Store(true)
		b.Add("api", shared(t, store, "k", outbound.PerSecond(1)))
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		l := b.Snapshot(ctx, Query{}).Limiters[0]
		if l.Severity != Calm || l.Err == "" || strings.Contains(fmt.Sprint(l.Err, l.Trouble), "no answer within 800ms") || strings.Contains(fmt.Sprint(l.Trouble), "store") {
			t.Errorf("%+v", l)
		}
		time.Sleep(time.Hour)
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
