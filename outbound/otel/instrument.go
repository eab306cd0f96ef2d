package otel

import (
	"fmt"
	"sync"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

const scope = "github.com/dripfeed/dripfeed/outbound/otel"

// Config says where the numbers and the spans go.
type Config struct {
	MeterProvider  metric.MeterProvider // nil: the global one, also if that is set later
	TracerProvider trace.TracerProvider // nil: the global one, also if that is set later
}

// Instrument has a Board tell OpenTelemetry of its limiters: those that it has, and those that are added later. Call
// it once for each Board; what two Boards count under one name adds up. stop ends it, and returns the error of the
// MeterProvider. If Instrument fails, nothing has begun.
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
	meter := c.MeterProvider.Meter(scope)
	heard, err := newListener(meter, c.TracerProvider.Tracer(scope))
	if err != nil {
		return nil, err
	}
	n := numbers{board: b}
	registration, err := n.register(meter)
	if err != nil {
		return nil, err
	}
	deafen := b.OnCall(heard.call)
	return sync.OnceValue(func() error {
		deafen()
		return registration.Unregister()
	}), nil
}
