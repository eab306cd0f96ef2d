package storetimes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// The buckets are those of each store, also of one that is added later, and each request is in one of them.
func TestProducer_RequestsAreAHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		p := NewProducer(&b)
		if all, err := p.Produce(t.Context()); all != nil || err != nil {
			t.Errorf("without a store: %v, %v", all, err)
		}
		began := time.Now()
		for _, count := range []uint64{9, 12} {
			time.Sleep(time.Minute)
			requests := store.Times{Count: count, Time: 4 * time.Hour, Within: [len(store.TimeBounds)]uint64{0: 4, 6: 5}}
			if err := b.AddStore(fmt.Sprint("redis ", count), boardtest.Store{Counted: store.StoreStats{Requests: requests}}); err != nil {
				t.Fatal(err)
			}
			all, err := p.Produce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h := all[0].Metrics[0].Data.(metricdata.Histogram[float64])
			d := h.DataPoints[len(h.DataPoints)-1]
			if got, want := fmt.Sprint(d.BucketCounts), fmt.Sprint("[4 0 0 0 0 0 5 0 0 0 0 0 0 0 0 ", count-9, "]"); got != want || d.Count != count || d.Sum != 4*3600 || d.Bounds[0] != 0.001 || d.Bounds[14] != 3600 {
				t.Errorf("%s of %v, %d in %v s", got, d.Bounds, d.Count, d.Sum)
			}
			if v, _ := d.Attributes.Value("store"); v.AsString() != fmt.Sprint("redis ", count) {
				t.Errorf("it is of %q", v.AsString())
			}
			if h.Temporality != metricdata.CumulativeTemporality || !d.StartTime.Equal(began) || !d.Time.Equal(time.Now()) {
				t.Errorf("from %v to %v, want %v", d.StartTime, d.Time, began)
			}
		}
		if _, err := NewProducer(nil).Produce(context.Background()); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	})
}
