package otel

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/otel/storetimes"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

var bg = context.Background()

// secret is the key of each test's buckets.
const secret = "secret-key"

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	t.Helper()
	b, err := outbound.NewBucket(secret, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// slow is a limiter whose calls wait for their cost in seconds.
var slow = limiterFunc(func(_ context.Context, c outbound.Cost) (outbound.Permit, error) {
	time.Sleep(time.Duration(math.Round(c[0] * 1e9)))
	return outbound.Permit{}, nil
})

// acquire has a call admitted.
func acquire(t testing.TB, ctx context.Context, l outbound.Limiter, cost float64) outbound.Permit {
	t.Helper()
	p, err := l.Acquire(ctx, outbound.Cost{cost})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// instrument has a Board report to a reader.
func instrument(t testing.TB, b *watch.Board) *sdkmetric.ManualReader {
	t.Helper()
	r := sdkmetric.NewManualReader(sdkmetric.WithProducer(storetimes.NewProducer(b)))
	begin(t, b, Config{sdkmetric.NewMeterProvider(sdkmetric.WithReader(r)), noop.NewTracerProvider()})
	return r
}

func begin(t testing.TB, b *watch.Board, c Config) {
	t.Helper()
	stop, err := Instrument(b, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// traced has a Board report to a recorder of spans.
func traced(t testing.TB, b *watch.Board) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
	begin(t, b, Config{sdkmetric.NewMeterProvider(), tp})
	return r, tp
}

func collect(t testing.TB, r sdkmetric.Reader) []metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(bg, &all); err != nil {
		t.Fatal(err)
	}
	var list []metricdata.Metrics
	for _, s := range all.ScopeMetrics {
		list = append(list, s.Metrics...)
	}
	return list
}

// newListener returns what Instrument has a Board call.
func newListener(m metric.Meter, t trace.Tracer) (*listener, error) {
	l := &listener{tracer: t, names: make(map[string]*named)}
	_, err := l.register(m, new(watch.Board))
	return l, err
}

// find returns the data of a metric.
func find(t testing.TB, all []metricdata.Metrics, name string) metricdata.Aggregation {
	t.Helper()
	i := slices.IndexFunc(all, func(m metricdata.Metrics) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("%s is not reported", name)
	}
	return all[i].Data
}

// waits returns the histogram of the waits of the one name that there is.
func waits(t testing.TB, r sdkmetric.Reader) metricdata.HistogramDataPoint[float64] {
	t.Helper()
	points := find(t, collect(t, r), "dripfeed.call.wait_time").(metricdata.Histogram[float64]).DataPoints
	if len(points) != 1 {
		t.Fatalf("%d histograms", len(points))
	}
	return points[0]
}

// samples returns the values of metrics, as Prometheus would have it after the rules of OpenTelemetry: by the name of a
// series with its labels. counters are those of them that must not go back.
func samples(t testing.TB, all []metricdata.Metrics) (values map[string]float64, counters []string) {
	t.Helper()
	values = make(map[string]float64)
	set := func(m *metricdata.Metrics, suffix string, set attribute.Set, value float64, more ...string) {
		k := nameOf(t, m.Name, m.Unit, m.Data) + suffix + labels(set, more...)
		if _, twice := values[k]; twice {
			t.Errorf("%s is reported twice", k)
		}
		values[k] = value
		if _, ok := m.Data.(metricdata.Gauge[int64]); ok {
			return
		}
		if _, ok := m.Data.(metricdata.Gauge[float64]); ok {
			return
		}
		counters = append(counters, k)
	}
	for i := range all {
		m := &all[i]
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				set(m, "", p.Attributes, float64(p.Value))
			}
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				set(m, "", p.Attributes, p.Value)
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				set(m, "", p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				set(m, "", p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				total := uint64(0)
				for i, n := range p.BucketCounts {
					total += n
					le := "+Inf"
					if i < len(p.Bounds) {
						le = strconv.FormatFloat(p.Bounds[i], 'g', -1, 64)
					}
					set(m, "_bucket", p.Attributes, float64(total), "le", le)
				}
				set(m, "_sum", p.Attributes, p.Sum)
				set(m, "_count", p.Attributes, float64(p.Count))
			}
		default:
			t.Errorf("%s is a %T", m.Name, m.Data)
		}
	}
	return values, counters
}

// nameOf returns what an exporter for Prometheus calls a metric.
func nameOf(t testing.TB, name, unit string, data metricdata.Aggregation) string {
	t.Helper()
	m := otlptranslator.Metric{Name: name, Unit: unit, Type: otlptranslator.MetricTypeGauge}
	switch x := data.(type) {
	case metricdata.Sum[int64]:
		if m.Type = otlptranslator.MetricTypeMonotonicCounter; !x.IsMonotonic {
			t.Errorf("%s goes up and down", name)
		}
	case metricdata.Sum[float64]:
		if m.Type = otlptranslator.MetricTypeMonotonicCounter; !x.IsMonotonic {
			t.Errorf("%s goes up and down", name)
		}
	case metricdata.Histogram[float64]:
		m.Type = otlptranslator.MetricTypeHistogram
	}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	got, err := namer.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// labels writes the labels of a series in the order of their names.
func labels(set attribute.Set, more ...string) string {
	all := make(map[string]string)
	for _, a := range set.ToSlice() {
		all[strings.ReplaceAll(string(a.Key), ".", "_")] = a.Value.AsString()
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	s := ""
	for _, k := range slices.Sorted(maps.Keys(all)) {
		s += fmt.Sprintf(",%s=%q", k, all[k])
	}
	return "{" + strings.TrimPrefix(s, ",") + "}"
}

// promText returns what the Board itself serves to Prometheus: the values by series, and the heads of all metrics.
func promText(t testing.TB, b *watch.Board) (values map[string]float64, heads []string) {
	t.Helper()
	w := httptest.NewRecorder()
	b.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	values = make(map[string]float64)
	label := regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSuffix(line, "\n")
		if head, ok := strings.CutPrefix(line, "# "); ok {
			heads = append(heads, head)
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		name, rest, _ := strings.Cut(line[:i], "{")
		var all []string
		for _, l := range label.FindAllStringSubmatch(rest, -1) {
			if l[2] != "" {
				all = append(all, l[0])
			}
		}
		slices.Sort(all)
		values[name+"{"+strings.Join(all, ",")+"}"] = value
	}
	return values, heads
}
