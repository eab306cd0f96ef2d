package otel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

const scope = "github.com/dripfeed/dripfeed/outbound/otel"

// Config selects the providers of metrics and traces. If a provider is nil, the global one is used,
// even if it is set later.
type Config struct {
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Instrument makes a Board report to OpenTelemetry, with its present and its later limiters. Call
// it before the limiters are used, once for each Board: it sets the Board's OnCall, and calls the
// function that was there before. stop ends it, and returns the error of the MeterProvider. If
// Instrument fails, nothing has begun.
func Instrument(b *watch.Board, c Config) (stop func() error, err error) {
	if b == nil {
		return nil, fmt.Errorf("%w: nil Board of Instrument", outbound.ErrInvalid)
	}
	if c.MeterProvider == nil {
		c.MeterProvider = api.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = api.GetTracerProvider()
	}
	l := &listener{tracer: c.TracerProvider.Tracer(scope), names: make(map[string]*named)}
	registration, err := l.register(c.MeterProvider.Meter(scope), b)
	if err != nil {
		return nil, err
	}
	var stopped atomic.Bool
	before := b.OnCall
	b.OnCall = func(ctx context.Context, c watch.Call) {
		if before != nil {
			before(ctx, c)
		}
		if !stopped.Load() {
			l.call(ctx, c)
		}
	}
	return sync.OnceValue(func() error {
		stopped.Store(true)
		return registration.Unregister()
	}), nil
}

// register makes the instruments. All but the histogram of the waits are read at collection. The
// API cannot read a histogram at collection, so it gets the sum of one.
func (l *listener) register(m metric.Meter, b *watch.Board) (registration metric.Registration, err error) {
	var all []metric.Observable
	var bounds []float64
	for _, d := range store.TimeBounds {
		bounds = append(bounds, d.Seconds())
	}
	of := make(map[*watch.Metric]metric.Float64Observable)
	for _, is := range watch.AllMetrics() {
		unit, help := metric.WithUnit(is.Unit), metric.WithDescription(is.Help)
		switch {
		case is.Kind == watch.Gauge:
			of[is], err = m.Float64ObservableGauge(is.Name, unit, help)
		case is.Kind == watch.Counter:
			of[is], err = m.Float64ObservableCounter(is.Name, unit, help)
		case is.Labels[0] == "store": // package storetimes has the histogram
			of[is], err = m.Float64ObservableCounter(is.Name+".sum", unit, help)
		default:
			l.waits, err = m.Float64Histogram(is.Name, unit, help, metric.WithExplicitBucketBoundaries(bounds...))
		}
		if err != nil {
			return nil, err
		}
		if i := of[is]; i != nil {
			all = append(all, i)
		}
	}
	return m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		b.Collect(ctx, func(s watch.Sample) {
			var labels []attribute.KeyValue
			for i, v := range s.Values {
				if v != "" {
					labels = append(labels, attribute.String(s.Labels[i], v))
				}
			}
			if i := of[s.Metric]; i != nil {
				o.ObserveFloat64(i, s.Value, metric.WithAttributes(labels...))
			}
		})
		return nil
	}, all...)
}
