package otel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

// An alert or a dashboard for the Board's own text works with an exporter's, too: names, kinds, helps, labels, values.
func TestPrometheusGetsTheSameBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		histogram := metricdata.Histogram[float64]{}
		heads := []string{"HELP " + nameOf(t, waitTime, "s", histogram) + " " + waitTimeHelp, "TYPE " + nameOf(t, waitTime, "s", histogram) + " histogram"}
		for _, d := range definitions {
			data, kind := metricdata.Aggregation(metricdata.Gauge[float64]{}), "gauge"
			if d.kind == counter || d.kind == sum {
				data, kind = metricdata.Sum[float64]{IsMonotonic: true}, "counter"
			}
			name := nameOf(t, d.name, d.unit, data)
			heads = append(heads, "HELP "+name+" "+d.help, "TYPE "+name+" "+kind)
		}
		_, want := promText(t, &b)
		slices.Sort(want)
		slices.Sort(heads)
		const times = "dripfeed_store_trips_time_seconds_total" // the sum of a histogram in the text, and alone for who has no Producer
		heads = slices.DeleteFunc(heads, func(head string) bool { return strings.Contains(head, times) })
		for _, head := range want {
			if !slices.Contains(heads, head) && !strings.Contains(head, "dripfeed_store_trip_time_seconds ") { // a Producer's, below
				t.Errorf("the Board alone has %s", head)
			}
		}
		for _, head := range heads {
			if !slices.Contains(want, head) {
				t.Errorf("OpenTelemetry alone has %s", head)
			}
		}

		busy(t, &b)
		all := collect(t, r)
		for _, m := range all {
			if name := nameOf(t, m.Name, m.Unit, m.Data); !slices.Contains(want, "HELP "+name+" "+m.Description) && name != times {
				t.Errorf("the Board does not have %s: %s", name, m.Description)
			}
		}
		got, _ := samples(t, all)
		text, _ := promText(t, &b)
		for k, v := range text {
			is, ok := got[k]
			if !ok && v == 0 && (strings.Contains(k, `"failed"`) || strings.HasPrefix(k, "dripfeed_call_wait_time")) {
				continue // OpenTelemetry tells these from the first call on
			}
			if !ok || math.Abs(is-v) > 1e-9*max(1, v) {
				t.Errorf("%s is %v, and in the text %v", k, is, v)
			}
		}
		for k := range got {
			if _, ok := text[k]; !ok && !strings.HasPrefix(k, times) {
				t.Errorf("%s is not in the text", k)
			}
		}
		if oldest := got[`dripfeed_calls_oldest_wait_seconds{limiter="stuck"}`]; oldest != 10 || len(got) < 60 {
			t.Errorf("%v s, %d series", oldest, len(got))
		}
	})
}

// statsOf is a store that has counted so much.
type statsOf store.StoreStats

func (s statsOf) Stats() store.StoreStats { return store.StoreStats(s) }

// busy adds limiters to a Board, and has something happen to each.
func busy(t testing.TB, b *watch.Board) {
	t.Helper()
	q := queue.New(bucket(t, outbound.PerSecond(10), outbound.PerHour(100).Burst(50).Of(1, "tokens")), queue.Config{MaxWait: 2 * time.Second})
	line := b.Add("line", q)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() { _, _ = line.Acquire(bg, outbound.Cost{1, 2}) })
	}
	all.Wait()
	api := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1}))
	p := acquire(t, bg, api, 2)
	p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: "core", Unit: "requests", Limit: 100, Remaining: 40, Reset: time.Hour}})
	p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
	p.Done()
	_, _ = b.Add("broken", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
		return outbound.Permit{}, errors.New("broken")
	})).Acquire(bg, outbound.Cost{1})
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, _ = b.Add("slow", limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
		return outbound.Permit{}, ctx.Err()
	})).Acquire(ctx, outbound.Cost{1})
	if err := b.AddStore("redis", statsOf{Trips: store.Trips{Count: 7, Time: 3 * time.Second, Within: []store.TripsWithin{{Bound: time.Millisecond, Count: 2}, {Bound: time.Hour, Count: 6}}}, Answered: 9, Repeats: 2, Failed: 1}); err != nil {
		t.Fatal(err)
	}
	keys := &outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return outbound.NewBucket(secret, outbound.PerSecond(1)) }}
	of := watch.AddKeyed(b, "tenants", keys, nil)
	for i := range 5 {
		acquire(t, bg, of(i), 1)
	}
	stuck := b.Add("stuck", queue.New(bucket(t, outbound.PerHour(1)), queue.Config{MaxWait: 2 * time.Hour}))
	acquire(t, bg, stuck, 1)
	ctx, cancel = context.WithCancel(bg)
	t.Cleanup(cancel)
	go func() { _, _ = stuck.Acquire(ctx, outbound.Cost{1}) }()
	time.Sleep(10 * time.Second)
}

// However many keys a Keyed has, there is one series of it, and no key is in any text.
func TestManyKeysMakeOneSeries(t *testing.T) {
	var b watch.Board
	r := instrument(t, &b)
	keys := &outbound.Keyed[string]{Max: 20_000, New: func(string) (outbound.Limiter, error) {
		return outbound.NewBucket(secret, outbound.PerHour(1))
	}}
	of := watch.AddKeyed(&b, "tenants", keys, nil)
	for i := range 10_000 {
		acquire(t, bg, of("secret-"+strconv.Itoa(i)), 1)
	}
	for i := range 100 {
		if _, err := of("secret-"+strconv.Itoa(i)).Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatal(err)
		}
	}
	all := collect(t, r)
	for _, m := range all {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok && len(h.DataPoints) != 1 {
			t.Errorf("%d histograms", len(h.DataPoints))
		}
	}
	values, _ := samples(t, all)
	if len(values) > 30 || values[`dripfeed_calls_total{limiter="tenants",result="admitted"}`] != 10_000 ||
		values[`dripfeed_calls_total{limiter="tenants",result="refused"}`] != 100 || values[`dripfeed_keys{limiter="tenants"}`] != 10_000 {
		t.Errorf("%d series: %v", len(values), values)
	}
	if text := fmt.Sprint(values); strings.Contains(text, "secret") {
		t.Error(text)
	}
}

// A store that forgets is one whose data were lost.
type forgetful struct{ atomic.Pointer[store.Memory] }

func (f *forgetful) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	return f.Load().Update(ctx, key, op)
}

// Whatever happens, no counter is lower than before, and none is gone.
func TestNoCounterGoesBack(t *testing.T) {
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			var b watch.Board
			r := instrument(t, &b)
			kept := new(forgetful)
			kept.Store(store.NewMemory())
			shared, err := outbound.NewSharedBucket(kept, secret, outbound.PerSecond(5))
			if err != nil {
				t.Fatal(err)
			}
			var own *outbound.Bucket
			var ofOwn outbound.Limiter
			renew := func() {
				own = bucket(t, outbound.PerSecond(20))
				ofOwn = b.Add("own", queue.New(own, queue.Config{MaxWait: time.Second}))
			}
			renew()
			ofShared := b.Add("shared", shared)
			keys := &outbound.Keyed[int]{Max: 3, New: func(int) (outbound.Limiter, error) { return outbound.NewBucket(secret, outbound.PerSecond(1)) }}
			of := watch.AddKeyed(&b, "keyed", keys, nil)
			ask := func(l outbound.Limiter) {
				refuse := random.IntN(8) == 0
				go func() {
					ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
					defer cancel()
					if p, err := l.Acquire(ctx, outbound.Cost{1}); err == nil {
						if refuse {
							p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: 200 * time.Millisecond, Reason: "rate"})
						}
						p.Done()
					}
				}()
			}
			before, names := map[string]float64{}, []string{}
			for i := 0; i < 150 && !t.Failed(); i++ {
				switch random.IntN(12) {
				case 0:
					renew()
				case 1:
					_ = own.Hold(bg, time.Duration(random.IntN(1000))*time.Millisecond)
				case 2:
					_ = own.Resume(bg)
				case 3:
					kept.Store(store.NewMemory())
				default:
					ask([]outbound.Limiter{ofOwn, ofShared, of(random.IntN(10))}[random.IntN(3)])
				}
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				now, counters := samples(t, collect(t, r))
				for _, k := range names {
					if v, ok := now[k]; !ok || v < before[k] {
						t.Errorf("seed %d: %s was %v, and is %v (%v)", seed, k, before[k], v, ok)
					}
				}
				before, names = now, counters
			}
			if before[`dripfeed_hold_time_seconds_total{limiter="own"}`] == 0 || before[`dripfeed_calls_total{limiter="keyed",result="refused"}`] == 0 {
				t.Errorf("nothing has happened: %v", before)
			}
			time.Sleep(time.Minute)
		})
	}
}

// told returns what an Observer hears of a Snapshot.
func told(t *testing.T, n *numbers, s *watch.Snapshot) map[string]float64 {
	t.Helper()
	r := sdkmetric.NewManualReader()
	m := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r)).Meter("")
	n.board = new(watch.Board)
	if _, err := n.register(m); err != nil {
		t.Fatal(err)
	}
	if _, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		n.tell(o, s)
		return nil
	}, n.instruments[:]...); err != nil {
		t.Fatal(err)
	}
	values, _ := samples(t, collect(t, r))
	return values
}

// A queue or a store that is added again counts from 0.
func TestACounterThatBeginsAnewStandsStill(t *testing.T) {
	var n numbers
	at := func(l uint64) map[string]float64 {
		return told(t, &n, &watch.Snapshot{
			Limiters: []watch.Limiter{{Name: "api", Kept: true, Queued: true, Late: l, HeldTime: time.Duration(l) * time.Second}},
			Stores:   []watch.Store{{Name: "redis", Counts: true, Trips: l, TripTime: time.Duration(l) * time.Second, Operations: 2 * l, Repeats: l, Failures: l, Away: l == 7}},
		})
	}
	for _, l := range []uint64{5, 0, 7} {
		values, high := at(l), float64(max(l, 5))
		for name, want := range map[string]float64{
			`dripfeed_queue_late_total{limiter="api"}`:               high,
			`dripfeed_hold_time_seconds_total{limiter="api"}`:        high,
			`dripfeed_store_trips_total{store="redis"}`:              high,
			`dripfeed_store_trips_time_seconds_total{store="redis"}`: high,
			`dripfeed_store_repeats_total{store="redis"}`:            high,
			`dripfeed_store_failures_total{store="redis"}`:           high,
			`dripfeed_store_operations_total{store="redis"}`:         2 * high,
			`dripfeed_store_away{store="redis"}`:                     float64(l / 7),
			`dripfeed_calls_oldest_wait_seconds{limiter="api"}`:      0,
			`dripfeed_calls_total{limiter="api",result="refused"}`:   0,
		} {
			if got, ok := values[name]; !ok || got != want {
				t.Errorf("after %d %s is %v, want %v", l, name, got, want)
			}
		}
	}
}

// What an API calls its quotas may be anything, and what a limiter of the program's own admits, too.
func TestHostileTextsAndNumbersAreTold(t *testing.T) {
	for _, bad := range []string{"<img onerror>\"\n", "\xff\xfe", strings.Repeat("ä", 5000), "", "\x00"} {
		l := watch.Limiter{Name: bad, Kept: true, Queued: true, Explain: &outbound.Explanation{}, Reason: bad, Speed: 1,
			Calls:    watch.Calls{ByError: map[string]uint64{bad: 1}, ByLimit: map[string]uint64{bad: 1}, Units: [len(outbound.Cost{})]float64{math.Inf(1)}},
			Limits:   []watch.Limit{{Name: bad, Level: math.NaN(), Capacity: math.Inf(1), LeakRate: 1}},
			Budgets:  []watch.Budget{{Policy: bad, Unit: bad, Limit: math.NaN(), Remaining: math.Inf(1), ResetIn: -1, Others: 0.5}},
			Refusals: map[string]uint64{bad: 1}}
		values := told(t, new(numbers), &watch.Snapshot{Limiters: []watch.Limiter{l}, Stores: []watch.Store{{Name: bad, Counts: true}}})
		for k, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) || len(k) > 2000 || strings.Contains(k, `\xf`) { // which is no UTF-8, quoted
				t.Errorf("%.300s is %v", k, v)
			}
			for _, name := range []string{"dripfeed_limit_level", "dripfeed_limit_capacity", "dripfeed_api_limit", "dripfeed_api_reset", "dripfeed_api_remaining", "dripfeed_units"} {
				if strings.HasPrefix(k, name) {
					t.Errorf("%.300s is told", k)
				}
			}
		}
		if len(values) != 20 {
			t.Errorf("%d series", len(values))
		}
		if a := text("limiter", bad).Value.AsString(); !utf8.ValidString(a) || len(a) > longestText+3 {
			t.Errorf("%.300q", a)
		}
	}
}

// Each collection looks at the Board once, however many instruments there are.
func TestACollectionLooksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		trips := &counting{Store: store.NewMemory()}
		shared, err := outbound.NewSharedBucket(trips, secret, outbound.PerSecond(5))
		if err != nil {
			t.Fatal(err)
		}
		b.Add("api", shared)
		for i := range 3 {
			collect(t, r)
			if n := trips.n.Load(); n != int64(i+1) {
				t.Errorf("%d trips after %d collections", n, i+1)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

type counting struct {
	store.Store
	n atomic.Int64
}

func (c *counting) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	c.n.Add(1)
	return c.Store.Update(ctx, key, op)
}

// Counts are of one process, and add up. The state of a shared bucket is of all workers, and does not.
func TestCountsAreOfOneProcessAndLevelsOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := store.NewMemory()
		var readers []sdkmetric.Reader
		for range 2 {
			b := new(watch.Board)
			readers = append(readers, instrument(t, b))
			shared, err := outbound.NewSharedBucket(store, secret, outbound.Limit{Capacity: 100, LeakRate: 0.001, Name: "fleet"})
			if err != nil {
				t.Fatal(err)
			}
			l := b.Add("api", shared)
			for range 3 {
				acquire(t, bg, l, 1)
			}
		}
		for _, r := range readers {
			values, _ := samples(t, collect(t, r))
			if calls, level := values[`dripfeed_calls_total{limiter="api",result="admitted"}`], values[`dripfeed_limit_level{limit="fleet",limiter="api"}`]; calls != 3 || level != 6 {
				t.Errorf("%v calls and %v units", calls, level)
			}
		}
	})
}

// More names than a Board shows are an error of the collection, and not silently none.
func TestNamesThatAreNotToldAreAnError(t *testing.T) {
	var b watch.Board
	r := instrument(t, &b)
	for i := range mostRows + 5 {
		b.Add(strconv.Itoa(i), slow)
	}
	var all metricdata.ResourceMetrics
	if err := r.Collect(bg, &all); err == nil || !strings.Contains(err.Error(), "1005 names, and 5") {
		t.Error(err)
	}
	if len(all.ScopeMetrics) != 1 {
		t.Error("the others are not told")
	}
}
