package trips

import (
	"context"
	"errors"
	"fmt"
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
type statsOf store.Trips

func (s statsOf) Stats() store.StoreStats { return store.StoreStats{Trips: store.Trips(s)} }

// histograms returns what a reader hears.
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

// The buckets are those of the store, each trip is in one of them, and a store that counts from 0 begins anew.
func TestTripsAreAHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := sdkmetric.NewManualReader(sdkmetric.WithProducer(NewProducer(&b)))
		_ = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
		if all := histograms(t, r); all != nil {
			t.Errorf("without a store: %v", all)
		}
		began := time.Now()
		time.Sleep(time.Minute)
		add := func(trips ...uint64) metricdata.HistogramDataPoint[float64] {
			t.Helper()
			if err := b.AddStore("redis\xff", statsOf{Count: trips[2], Time: 3 * time.Second, Within: []store.TripsWithin{
				{Bound: time.Millisecond, Count: trips[0]}, {Bound: time.Second, Count: trips[1]}}}); err != nil {
				t.Fatal(err)
			}
			all := histograms(t, r)
			if len(all) != 1 {
				t.Fatalf("%d histograms", len(all))
			}
			return all[0]
		}
		for _, c := range []struct {
			trips []uint64
			want  string
			anew  bool
		}{
			{[]uint64{4, 9, 10}, "[4 5 1] 10", false},
			{[]uint64{4, 9, 12}, "[4 5 3] 12", false},
			{[]uint64{5, 9, 8}, "[5 4 0] 9", true},       // read at different moments
			{[]uint64{14, 12, 13}, "[14 0 0] 14", false}, // as a store of somebody's own may have it
			{[]uint64{0, 0, 1}, "[0 0 1] 1", true},
		} {
			time.Sleep(time.Minute)
			if c.anew {
				began = time.Now()
			}
			d := add(c.trips...)
			if got := fmt.Sprint(d.BucketCounts, " ", d.Count); got != c.want || fmt.Sprint(d.Bounds) != "[0.001 1]" || d.Sum != 3 {
				t.Errorf("%v: %s of %v, %v s, want %s", c.trips, got, d.Bounds, d.Sum, c.want)
			}
			if v, _ := d.Attributes.Value("store"); v.AsString() != "redis\uFFFD" {
				t.Errorf("it is of %q", v.AsString())
			}
			if !d.StartTime.Equal(began) || !d.Time.Equal(time.Now()) {
				t.Errorf("%v: from %v to %v, want %v", c.trips, d.StartTime, d.Time, began)
			}
		}
		if _, err := NewProducer(nil).Produce(context.Background()); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	})
}
