package storetimes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// statsOf is a store that has counted so much.
type statsOf store.Times

func (s statsOf) Stats() store.StoreStats { return store.StoreStats{Requests: store.Times(s)} }

// histograms returns what a reader collects.
func histograms(t *testing.T, r sdkmetric.Reader) []metricdata.HistogramDataPoint[float64] {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.ScopeMetrics) == 0 {
		return nil
	}
	return all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Histogram[float64]).DataPoints
}

// The buckets are those of the store, and each request is in one of them.
func TestProducer_RequestsAreAHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := sdkmetric.NewManualReader(sdkmetric.WithProducer(NewProducer(&b)))
		_ = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
		if all := histograms(t, r); all != nil {
			t.Errorf("without a store: %v", all)
		}
		began := time.Now()
		for _, times := range []store.Times{
			{Count: 9, Time: 3 * time.Second, Within: [len(store.TimeBounds)]uint64{0: 4, 6: 5}},
			{Count: 12, Time: 4 * time.Hour, Within: [len(store.TimeBounds)]uint64{0: 4, 6: 5}},
		} {
			time.Sleep(time.Minute)
			for _, name := range []string{"redis\xff", "other"} {
				if err := b.AddStore(name, statsOf(times)); err != nil {
					t.Fatal(err)
				}
			}
			all := histograms(t, r)
			if len(all) != 2 {
				t.Fatalf("%d histograms", len(all))
			}
			d := all[0]
			if got, want := fmt.Sprint(d.BucketCounts), fmt.Sprint("[4 0 0 0 0 0 5 0 0 0 0 0 0 ", times.Count-9, "]"); got != want || d.Count != times.Count || d.Sum != times.Time.Seconds() || d.Bounds[0] != 0.001 || d.Bounds[12] != 3600 {
				t.Errorf("%s of %v, %d in %v s", got, d.Bounds, d.Count, d.Sum)
			}
			if v, _ := d.Attributes.Value("store"); !strings.HasPrefix(v.AsString(), "redis\uFFFD") {
				t.Errorf("it is of %q", v.AsString())
			}
			if !d.StartTime.Equal(began) || !d.Time.Equal(time.Now()) {
				t.Errorf("from %v to %v, want %v", d.StartTime, d.Time, began)
			}
		}
		if _, err := NewProducer(nil).Produce(context.Background()); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	})
}
