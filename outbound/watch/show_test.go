package watch

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// watchedStore is a store that counts its requests, and can hang.
type watchedStore struct {
	*store.Memory
	trips atomic.Int64
	hangs atomic.Bool
}

func (s *watchedStore) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	s.trips.Add(1)
	if s.hangs.Load() {
		<-ctx.Done()
		return store.Reply{}, ctx.Err()
	}
	r, err := s.Memory.Update(ctx, key, op)
	r.When = time.Now()
	return r, err
}

func shared(t testing.TB, s store.Store, key string, limits ...outbound.Limit) *outbound.Bucket {
	t.Helper()
	b, err := outbound.NewSharedBucket(s, key, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tenants(t testing.TB, max int, limit outbound.Limit) *outbound.Keyed[string] {
	return &outbound.Keyed[string]{Max: max, New: func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, limit) }}
}

// A look asks the store once for each shared row that is shown, and for no other. Nobody asks while nobody looks, and
// several who look within a second ask once.
func TestSnapshot_AsksOncePerSharedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := &watchedStore{Memory: store.NewMemory()}
		for i := range 10 {
			b.Add("api "+strconv.Itoa(i), queue.New(shared(t, store, strconv.Itoa(i), outbound.PerSecond(1)), queue.Config{}))
		}
		time.Sleep(time.Hour)
		if n := store.trips.Load(); n != 0 {
			t.Errorf("%d trips while nobody looked", n)
		}
		for range 3 {
			if s := b.Snapshot(bg, Query{Rows: 4}); len(s.Limiters) != 4 || s.Hidden != 6 || s.Limiters[0].Explain == nil || !s.Limiters[0].Shared {
				t.Errorf("%+v", s)
			}
		}
		if n := store.trips.Load(); n != 4 {
			t.Errorf("%d trips for 4 rows within a second", n)
		}
		time.Sleep(time.Second)
		b.Snapshot(bg, Query{Rows: 4})
		if n := store.trips.Load(); n != 8 {
			t.Errorf("%d trips for 4 rows in two seconds", n)
		}
	})
}

// With a store that hangs, a look ends within a second, and says how old the state is that it shows.
func TestSnapshot_EndsThoughTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		store := &watchedStore{Memory: store.NewMemory()}
		for i := range 20 {
			b.Add("api "+strconv.Itoa(i), shared(t, store, strconv.Itoa(i), outbound.PerSecond(1)))
		}
		b.Snapshot(bg, Query{})
		store.hangs.Store(true)
		time.Sleep(10 * time.Second)
		for range 3 {
			begin := time.Now()
			s := b.Snapshot(bg, Query{})
			if took := time.Since(begin); took > time.Second {
				t.Errorf("a look took %v", took)
			}
			for _, l := range s.Limiters {
				if l.Err == "" || l.Severity != Stopped || l.Explain == nil || s.At.Sub(l.Explain.AsOf) < 10*time.Second || !strings.HasPrefix(l.Trouble[0], "Its store does not answer") {
					t.Errorf("%+v", l)
				}
			}
		}
		if n := store.trips.Load(); n != 40 {
			t.Errorf("%d trips, want one for each row, and none for looks at the same time", n)
		}
		store.hangs.Store(false)
		time.Sleep(time.Second)
		if s := b.Snapshot(bg, Query{}); s.Limiters[0].Err != "" {
			t.Errorf("after the store is back: %+v", s.Limiters[0])
		}
	})
}

// The rows in trouble come first, in an order that their words explain.
func TestSnapshot_TroubleComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		limit := outbound.Limit{Capacity: 10, LeakRate: 0.01}
		b.Add("calm", bucket(t, limit))
		full := b.Add("full", bucket(t, limit))
		waits := b.Add("waits", queue.New(bucket(t, outbound.PerMinute(1)), queue.Config{}))
		slow := b.Add("slowed", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 10}))
		heldBucket := bucket(t, limit)
		b.Add("held", heldBucket)
		for range 9 {
			if _, err := full.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			p, err := slow.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
			p.Refused(time.Second)
			time.Sleep(2 * time.Second)
		}
		if err := heldBucket.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		for range 3 {
			go func() { _, _ = waits.Acquire(ctx, outbound.Cost{1}) }()
		}
		time.Sleep(3 * time.Second)
		s := b.Snapshot(bg, Query{})
		var names []string
		for _, l := range s.Limiters {
			names = append(names, l.Name)
		}
		if fmt.Sprint(names) != "[held slowed waits full calm]" {
			t.Errorf("%v", names)
		}
		for i, want := range []string{"No call leaves for 59 min 57 s: an operator", "Calls leave at ", "2 calls wait in the queue"} {
			if text := strings.Join(s.Limiters[i].Trouble, " "); !strings.HasPrefix(text, want) {
				t.Errorf("%s: %s", names[i], text)
			}
		}
		if len(s.Events) == 0 || s.Events[0].Name != "held" || !strings.Contains(s.Events[0].Words, "1 h") {
			t.Errorf("%+v", s.Events)
		}
		cancel()
		synctest.Wait()
	})
}

// Of very many keys the fullest are shown, and metrics have one series for all. DRIPFEED_LONG=1 makes it a million keys.
func TestTheFullestKeysAreShown(t *testing.T) {
	n, found := 100_000, 11
	switch {
	case os.Getenv("DRIPFEED_LONG") == "1":
		n, found = 1_000_000, 111
	case raced:
		n, found = 10_000, 1
	}
	fullest := strconv.Itoa(n/20*19 + 7)
	var b Board
	keyed := tenants(t, n, outbound.Limit{Capacity: 10, LeakRate: 1e-6})
	of := AddKeyed(&b, "tenants", keyed, func(key string) string { return "tenant " + key })
	for i := range n {
		cost := 0.001
		if i%(n/20) == 7 {
			cost = 5 + float64(i)/float64(n)
		}
		if _, err := of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{cost}); err != nil {
			t.Fatal(err)
		}
	}
	refused := strconv.Itoa(n / 3)
	for range 5 {
		if _, err := of(refused).Acquire(bg, outbound.Cost{9.9999}); err == nil {
			t.Fatal("it is not refused")
		}
	}
	s := b.Snapshot(bg, Query{Rows: 11})
	var labels []string
	for _, l := range s.Limiters {
		if l.Label != "" {
			labels = append(labels, l.Label)
		} else if l.Keys != n || l.Calls.Admitted != uint64(n) || l.Calls.Refused != 5 {
			t.Errorf("%+v", l)
		}
	}
	if want := []string{"tenant " + refused, "tenant " + fullest, "tenant " + strconv.Itoa(n/20*18+7)}; len(labels) < 10 || fmt.Sprint(labels[:3]) != fmt.Sprint(want) {
		t.Errorf("%v, want %v first", labels, want)
	}
	if s.Hidden != n+1-11 {
		t.Errorf("%d are hidden", s.Hidden)
	}
	if s := b.Snapshot(bg, Query{Search: "TENANT 4242", Rows: 1000}); len(s.Limiters) != found || s.Limiters[0].Label == "" {
		t.Errorf("a search found %d", len(s.Limiters))
	}
	text := metricsOf(&b)
	if lines := strings.Count(text, "dripfeed_calls_total{"); lines != 4 || strings.Contains(text, "tenant ") || !strings.Contains(text, `dripfeed_keys{limiter="tenants"} `+strconv.Itoa(n)) {
		t.Errorf("%d series\n%s", lines, text)
	}
	if bucket := b.bucketOf("tenants", "tenant "+fullest); bucket == nil || bucket.Key() != fullest {
		t.Errorf("the bucket of a label: %v", bucket)
	}
	if b.bucketOf("tenants", "") != nil || b.bucketOf("tenants", "no") != nil || b.bucketOf("no", "") != nil {
		t.Error("a bucket of nobody")
	}
}

// Without labels a key is shown by digits that do not reveal it.
func TestAKeyIsNotShown(t *testing.T) {
	var b Board
	of := AddKeyed(&b, "tokens", tenants(t, 10, outbound.PerHour(1)), nil)
	for range 2 {
		_, _ = of("ghp_secret").Acquire(bg, outbound.Cost{1})
	}
	s := b.Snapshot(bg, Query{})
	if text := string(jsonOf(t, s)); strings.Contains(text, "secret") || len(s.Limiters) != 2 {
		t.Error(text)
	}
	for _, l := range s.Limiters {
		if l.Label != "" && (len(l.Label) != 16 || b.bucketOf("tokens", l.Label) == nil) {
			t.Errorf("label %q", l.Label)
		}
	}
	nan := AddKeyed(&b, "floats", &outbound.Keyed[float64]{New: func(float64) (outbound.Limiter, error) { return outbound.Unlimited{}, nil }}, nil)
	zero := 0.0
	if _, err := nan(zero/zero).Acquire(bg, outbound.Cost{1}); err == nil {
		t.Error("NaN is a key")
	}
}

// A Keyed that drops its keys takes nothing back from the counters.
func TestMetrics_CountersNeverDecrease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		keyed := tenants(t, 5, outbound.PerSecond(1))
		of := AddKeyed(&b, "tenants", keyed, nil)
		for i := range 100 {
			p, err := of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
			time.Sleep(2 * time.Second)
			if c := b.Snapshot(bg, Query{}).Limiters[0].Calls; c.Admitted != uint64(i+1) {
				t.Fatalf("%+v after %d calls", c, i+1)
			}
		}
		if keyed.Len() > 5 {
			t.Error("no key was dropped")
		}
		one := bucket(t, outbound.Limit{Capacity: 5, LeakRate: 1})
		l := b.Add("one", one)
		_, _ = l.Acquire(bg, outbound.Cost{1})
		for range 2 {
			_ = one.Hold(bg, time.Minute)
			synctest.Wait()
			time.Sleep(10 * time.Second)
			_ = one.Resume(bg)
			synctest.Wait()
			time.Sleep(time.Minute)
		}
		for _, l := range b.Snapshot(bg, Query{}).Limiters {
			if l.Name == "one" && (l.Calls.Admitted != 1 || l.HeldTime != 20*time.Second) {
				t.Errorf("%+v", l)
			}
		}
	})
}

// Who looks for hours leaves the heap as it was: from the first look on, no key that is looked at has become larger.
func TestLookingLeavesTheHeapAsItWas(t *testing.T) {
	var b Board
	const keys = 3000 // whose ledgers would take 2.3 MB
	keyed := tenants(t, keys, outbound.Limit{Capacity: 10, LeakRate: 1e-3})
	of := AddKeyed(&b, "tenants", keyed, nil)
	for i := range keys {
		if _, err := of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
	}
	b.Add("queue", queue.New(bucket(t, outbound.PerSecond(1), outbound.InFlight(5)), queue.Config{}))
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	look := func(n int) {
		for range n {
			b.Snapshot(bg, Query{Rows: 5})
			metricsOf(&b)
		}
	}
	before := heap()
	if look(300); !raced {
		look(3300)
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	runtime.KeepAlive(&b) // else what has grown is garbage by then
	runtime.KeepAlive(keyed)
}

// What is called by the board may use it.
func TestBoard_CallsWithoutALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		one := bucket(t, outbound.Limit{Capacity: 5, LeakRate: 1})
		l := b.Add("one", one)
		heard := 0
		b.OnCall = func(ctx context.Context, c Call) {
			heard++
			b.Snapshot(ctx, Query{})
			_, _ = one.Explain(ctx, c.Cost)
			_ = one.Resume(ctx)
			b.Add("two", one)
		}
		_, _ = l.Acquire(bg, outbound.Cost{1})
		if heard != 1 {
			t.Errorf("heard of %d calls", heard)
		}
		synctest.Wait()
	})
}

// Between two walks over very many keys, a look reads the keys again that were found.
func TestKeyed_LooksAtManyKeysAreSpaced(t *testing.T) {
	var b Board
	of := AddKeyed(&b, "tenants", tenants(t, 100, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), func(key string) string { return key })
	take := func(key string, n float64) {
		t.Helper()
		if _, err := of(key).Acquire(bg, outbound.Cost{n}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		take(strconv.Itoa(i), 1+float64(i)/100)
	}
	first := func(n int) string {
		rows, more := b.shown[0].keyed.worst(n, "")
		return fmt.Sprint(rows[0].label, " of ", len(rows), " and ", more)
	}
	if got := first(5); got != "19 of 5 and 15" {
		t.Error(got)
	}
	set := b.shown[0].keyed.(*keyedSet[string])
	set.last.until = now() + time.Hour // as if there were a million
	take("3", 8)                       // it was not among the five
	take("16", 5)
	if got := first(5); got != "16 of 5 and 15" {
		t.Error(got)
	}
	if got := first(2); got != "16 of 2 and 18" {
		t.Error(got)
	}
	if got := first(6); got != "3 of 6 and 14" { // more than were looked for
		t.Error(got)
	}
	take("5", 8.9)
	set.last.until = 0
	if got := first(5); got != "5 of 5 and 15" {
		t.Error(got)
	}
}
