package otel

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/otel/storetimes"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

var bg = context.Background()

// slow is a limiter whose calls wait for their cost in seconds.
var slow = boardtest.Limiter(func(_ context.Context, c outbound.Cost) (outbound.Permit, error) {
	time.Sleep(time.Duration(math.Round(c[0] * 1e9)))
	return outbound.Permit{}, nil
})

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// acquire has a call admitted, whose permit no test needs.
func acquire(t testing.TB, ctx context.Context, l outbound.Limiter, cost float64) {
	t.Helper()
	p := must(l.Acquire(ctx, outbound.Cost{cost}))
	p.Done()
}

// sdk is an SDK that keeps what it gets.
type sdk struct {
	Config
	metrics *sdkmetric.ManualReader
	spans   *tracetest.SpanRecorder
	stop    func() error
}

// instrument has a Board report to an SDK, which reads the times of its stores as well.
func instrument(t testing.TB, b *watch.Board) *sdk {
	t.Helper()
	s := &sdk{metrics: sdkmetric.NewManualReader(sdkmetric.WithProducer(storetimes.NewProducer(b))), spans: tracetest.NewSpanRecorder()}
	s.Config = Config{sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics)), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))}
	var err error
	if s.stop, err = Instrument(b, s.Config); err != nil {
		t.Fatal(err)
	}
	return s
}

// collect returns the metrics by name.
func (s *sdk) collect(t testing.TB) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(bg, &all); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]metricdata.Metrics)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// durations returns the one histogram of a metric.
func (s *sdk) durations(t testing.TB, name string) metricdata.HistogramDataPoint[float64] {
	t.Helper()
	h, _ := s.collect(t)[name].Data.(metricdata.Histogram[float64])
	if len(h.DataPoints) != 1 {
		t.Fatalf("%s has %d histograms", name, len(h.DataPoints))
	}
	return h.DataPoints[0]
}

// text returns attributes as "key=value,key=value", in the order of their keys.
func text(set attribute.Set) string {
	var all []string
	for _, a := range set.ToSlice() {
		all = append(all, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(all, ",")
}
