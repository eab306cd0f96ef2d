// Package trips tells OpenTelemetry's SDK how long trips to the stores of a [watch.Board] take:
//
//	reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(trips.NewProducer(&board)))
//
// The metric is dripfeed.store.trip_time, a histogram in seconds with the attribute store, which an
// exporter for Prometheus calls as [watch.Board.Metrics] does. A store counts its trips itself, and
// OpenTelemetry's API has no histogram that is read at collection, as its counters and gauges are. Its
// SDK has: a Producer brings numbers that are counted already. So package otel beside this one needs
// the API only, and has all other metrics.
package trips

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// NewProducer returns a Producer for one reader, or for the exporter for Prometheus. It tells of the stores that count
// their trips, also of those that are added to the Board later.
func NewProducer(b *watch.Board) metric.Producer {
	return &producer{board: b, began: make(map[string]begin)}
}

type producer struct {
	board *watch.Board

	mu    sync.Mutex // protects what follows
	began map[string]begin
}

// begin is since when a store counts, and how far it has come.
type begin struct {
	at    time.Time
	trips uint64
}

// Produce implements [metric.Producer].
func (p *producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	if p.board == nil {
		return nil, fmt.Errorf("%w: nil Board of a Producer", outbound.ErrInvalid)
	}
	s := p.board.Snapshot(ctx, watch.Query{Rows: 1, Names: true}) // the stores are there in any case
	h := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
	for i := range s.Stores {
		if x := &s.Stores[i]; x.Counts {
			h.DataPoints = append(h.DataPoints, p.point(x, &s))
		}
	}
	if len(h.DataPoints) == 0 {
		return nil, nil
	}
	return []metricdata.ScopeMetrics{{
		Scope:   instrumentation.Scope{Name: "github.com/dripfeed/dripfeed/outbound/otel/trips"},
		Metrics: []metricdata.Metrics{{Name: "dripfeed.store.trip_time", Unit: "s", Description: "How long trips to the store took.", Data: h}},
	}}, nil
}

// point returns the histogram of a store.
func (p *producer) point(x *watch.Store, s *watch.Snapshot) metricdata.HistogramDataPoint[float64] {
	d := metricdata.HistogramDataPoint[float64]{
		Attributes: attribute.NewSet(attribute.String("store", strings.ToValidUTF8(x.Name, "\uFFFD"))),
		StartTime:  p.since(x, s), Time: s.At, Count: x.Trips, Sum: x.TripTime.Seconds(),
	}
	below := uint64(0) // Count and Within may be of different moments
	for _, w := range x.Within {
		d.Bounds = append(d.Bounds, w.Bound.Seconds())
		d.BucketCounts = append(d.BucketCounts, max(w.Count, below)-below)
		below = max(w.Count, below)
	}
	d.Count = max(d.Count, below)
	d.BucketCounts = append(d.BucketCounts, d.Count-below)
	return d
}

// since returns since when a store counts. One that is added again under its name counts from 0, which OpenTelemetry is
// to take for a new beginning.
func (p *producer) since(x *watch.Store, s *watch.Snapshot) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, known := p.began[x.Name]
	switch {
	case !known:
		b.at = s.Began
	case x.Trips < b.trips:
		b.at = s.At
	}
	b.trips = x.Trips
	p.began[x.Name] = b
	return b.at
}
