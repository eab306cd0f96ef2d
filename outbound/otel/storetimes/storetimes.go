// Package storetimes reports to OpenTelemetry how long requests to the stores of a [watch.Board]
// take:
//
//	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(storetimes.NewProducer(&board)))
//
// The metric is dripfeed.store.request_time, a histogram in seconds with the attribute store. An
// exporter for Prometheus gives it the name that [watch.Board.Metrics] serves. A store counts its
// requests itself, and only OpenTelemetry's SDK can read such a histogram at collection, by a
// Producer. Package otel has all other metrics, and needs the API only.
package storetimes

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// NewProducer returns a Producer for one reader, or for the exporter for Prometheus. It reports the
// stores that count their requests, also those that are added to the Board later.
func NewProducer(b *watch.Board) metric.Producer { return &producer{b, time.Now()} }

type producer struct {
	board *watch.Board
	began time.Time
}

// Produce implements [metric.Producer].
func (p *producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	if p.board == nil {
		return nil, fmt.Errorf("%w: nil Board of a Producer", outbound.ErrInvalid)
	}
	all := metricdata.Metrics{}
	h := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
	p.board.Collect(ctx, func(s watch.Sample) {
		if s.Kind != watch.Histogram || s.Labels[0] != "store" {
			return
		}
		d := metricdata.HistogramDataPoint[float64]{
			Attributes: attribute.NewSet(attribute.String("store", s.Values[0])),
			StartTime:  p.began, Time: time.Now(), Count: s.Times.Count, Sum: s.Value,
		}
		longer := d.Count
		for i, bound := range store.TimeBounds {
			d.Bounds, d.BucketCounts = append(d.Bounds, bound.Seconds()), append(d.BucketCounts, s.Times.Within[i])
			longer -= s.Times.Within[i]
		}
		d.BucketCounts = append(d.BucketCounts, longer)
		h.DataPoints = append(h.DataPoints, d)
		all = metricdata.Metrics{Name: s.Name, Unit: s.Unit, Description: s.Help, Data: h}
	})
	if all.Name == "" {
		return nil, nil
	}
	return []metricdata.ScopeMetrics{{
		Scope:   instrumentation.Scope{Name: "github.com/dripfeed/dripfeed/outbound/otel/storetimes"},
		Metrics: []metricdata.Metrics{all},
	}}, nil
}
