package otel

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

// An alert or a dashboard for the Board's own text works with an exporter's, too: names, kinds, helps, labels, values.
func TestMetrics_PrometheusGetsTheSameBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		for _, m := range watch.AllMetrics() {
			data := map[string]metricdata.Aggregation{watch.Counter: metricdata.Sum[float64]{IsMonotonic: true},
				watch.Gauge: metricdata.Gauge[float64]{}, watch.Histogram: metricdata.Histogram[float64]{}}[m.Kind]
			if name, _ := m.Prometheus(); name != nameOf(t, m.Name, m.Unit, data) {
				t.Errorf("%s is %s, and by an exporter %s", m.Name, name, nameOf(t, m.Name, m.Unit, data))
			}
		}
		busy(t, &b)
		all := collect(t, r)
		text, heads := promText(t, &b)
		const sum = "dripfeed_store_request_time_sum_seconds_total" // of a histogram, which only a Producer has
		for _, m := range all {
			if name := nameOf(t, m.Name, m.Unit, m.Data); !slices.Contains(heads, "HELP "+name+" "+m.Description) && name != sum {
				t.Errorf("the Board does not have %s: %s", name, m.Description)
			}
		}
		got, _ := samples(t, all)
		for k, v := range text {
			is, ok := got[k]
			if !ok && v == 0 && strings.HasPrefix(k, "dripfeed_call_wait_time") {
				continue // OpenTelemetry reports these from the first call on
			}
			if !ok || math.Abs(is-v) > 1e-9*max(1, v) {
				t.Errorf("%s is %v, and in the text %v", k, is, v)
			}
		}
		for k, v := range got {
			if _, ok := text[k]; !ok && !(strings.HasPrefix(k, sum) && v == text[`dripfeed_store_request_time_seconds_sum{store="redis"}`]) {
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
	if err := b.AddStore("redis", statsOf{Requests: store.Times{Count: 7, Time: 3 * time.Second, Within: [len(store.TimeBounds)]uint64{0: 2, 12: 4}}, Answered: 9, Repeats: 2, Failed: 1}); err != nil {
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

// What an API calls its quotas may be anything, and what a limiter of the program's own admits, too.
func TestMetrics_HostileTextsAndNumbers(t *testing.T) {
	for _, bad := range []string{"<img onerror>\"\n", "\xff\xfe", strings.Repeat("ä", 5000), "", "\x00"} {
		var b watch.Board
		r := instrument(t, &b)
		l := b.Add(bad, limiterFunc(func(_ context.Context, c outbound.Cost) (p outbound.Permit, err error) {
			if c[0] == 2 {
				err = &outbound.ThrottledError{Limit: bad}
			}
			return p, err
		}))
		for _, n := range []float64{1, 2, math.Inf(1), math.NaN()} {
			if p, err := l.Acquire(bg, outbound.Cost{n}); err == nil {
				p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Reason: bad})
				p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: bad, Unit: bad, Limit: math.NaN(), Remaining: 5, Reset: -1}})
			}
		}
		if err := b.AddStore(bad, statsOf{}); err != nil {
			t.Fatal(err)
		}
		values, _ := samples(t, collect(t, r))
		for k, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) || len(k) > 2000 || strings.Contains(k, `\xf`) { // which is no UTF-8, quoted
				t.Errorf("%.300s is %v", k, v)
			}
		}
		if len(values) < 30 {
			t.Errorf("%d series", len(values))
		}
	}
}

// Each collection looks at the Board once, however many instruments there are.
func TestMetrics_CollectionLooksOnce(t *testing.T) {
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

// There may be more names than a page shows.
func TestMetrics_ReportManyNames(t *testing.T) {
	var b watch.Board
	r := instrument(t, &b)
	const names = 1005
	for i := range names {
		b.Add(strconv.Itoa(i), slow)
	}
	if n := len(find(t, collect(t, r), "dripfeed.units").(metricdata.Sum[float64]).DataPoints); n != names {
		t.Errorf("%d of %d names", n, names)
	}
}
