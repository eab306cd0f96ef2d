package otel

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// An exporter for Prometheus gives each metric and label the name that the Board's own text has.
func TestMetrics_HavePrometheusNamesOfTheBoard(t *testing.T) {
	kinds := map[string]otlptranslator.MetricType{watch.Counter: otlptranslator.MetricTypeMonotonicCounter,
		watch.Gauge: otlptranslator.MetricTypeGauge, watch.Histogram: otlptranslator.MetricTypeHistogram}
	namer, labeler := otlptranslator.MetricNamer{WithMetricSuffixes: true}, otlptranslator.LabelNamer{}
	for _, m := range watch.AllMetrics() {
		want, err := namer.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: kinds[m.Kind]})
		name, labels := m.Prometheus()
		errorIf(t, err != nil || name != want, "%s is %s, and by an exporter %s, %v", m.Name, name, want, err)
		for i, l := range m.Labels {
			if want, err := labeler.Build(l); err != nil || labels[i] != want {
				t.Errorf("%s of %s is %s, and by an exporter %s, %v", l, m.Name, labels[i], want, err)
			}
		}
	}
}

// series returns the values of metrics by their names with the attributes.
func series(t testing.TB, all map[string]metricdata.Metrics) map[string]float64 {
	t.Helper()
	values := make(map[string]float64)
	set := func(name string, s attribute.Set, value float64) {
		name += "{" + text(s) + "}"
		_, twice := values[name]
		errorIf(t, twice, "%s is reported twice", name)
		values[name] = value
	}
	for name, m := range all {
		switch data := m.Data.(type) {
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				set(name, p.Attributes, p.Value)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				set(name, p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				set(name, p.Attributes, p.Sum)
				set(fmt.Sprint(name, " ", p.BucketCounts), p.Attributes, float64(p.Count))
			}
		}
	}
	return values
}

// Each sample of the Board is a data point, with its name, kind, unit, help, attributes and value.
func TestMetrics_AreThoseOfTheBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		s := instrument(t, &b)
		boardtest.Fill(t, &b)
		all := s.collect(t)
		want := make(map[string]float64)
		b.Collect(bg, func(s watch.Sample) {
			var set []attribute.KeyValue
			for i, v := range s.Values {
				if v != "" {
					set = append(set, attribute.String(s.Labels[i], v))
				}
			}
			labels := "{" + text(attribute.NewSet(set...)) + "}"
			switch {
			case s.Times == nil:
				want[s.Name+labels] = s.Value
			case s.Times.Count > 0: // OpenTelemetry reports a histogram from its first value on
				longer := s.Times.Count
				for _, n := range s.Times.Within {
					longer -= n
				}
				want[s.Name+labels] = s.Value
				want[fmt.Sprint(s.Name, " ", append(s.Times.Within[:], longer), labels)] = float64(s.Times.Count)
				if s.Labels[0] == "store" {
					want[s.Name+".sum"+labels] = s.Value
				}
			}
		})
		if got := series(t, all); !maps.Equal(got, want) || len(got) < 60 {
			t.Errorf("%d series\n%v\nwant\n%v", len(got), got, want)
		}
		types := map[string]string{watch.Gauge: "metricdata.Gauge[float64]", watch.Histogram: "metricdata.Histogram[float64]", watch.Counter: "metricdata.Sum[float64]"}
		for _, m := range watch.AllMetrics() {
			got := all[m.Name]
			sum, ok := got.Data.(metricdata.Sum[float64])
			errorIf(t, got.Unit != m.Unit || got.Description != m.Help || fmt.Sprintf("%T", got.Data) != types[m.Kind] || ok && !sum.IsMonotonic,
				"%+v is a %T, in %q, %s", *m, got.Data, got.Unit, got.Description)
		}
	})
}

// There may be more names than a page shows.
func TestMetrics_ReportManyNames(t *testing.T) {
	var b watch.Board
	s := instrument(t, &b)
	for i := range 1005 {
		b.Add(strconv.Itoa(i), slow)
	}
	n := len(s.collect(t)["dripfeed.units"].Data.(metricdata.Sum[float64]).DataPoints)
	errorIf(t, n != 1005, "%d of 1005 names", n)
}

// The histogram of the waits is in seconds, and an exemplar in it leads to the caller's trace.
func TestWaits_AreInSecondsWithExemplars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		s := instrument(t, &b)
		ctx, span := s.TracerProvider.Tracer("").Start(bg, "caller")
		l := b.Add("api", slow)
		for _, wait := range []float64{0, 0.0005, 0.02, 2400, 7200} {
			acquire(t, bg, l, wait)
		}
		acquire(t, ctx, l, 2)
		h := s.durations(t, "dripfeed.call.wait_time")
		want := []float64{.001, .005, .01, .05, .1, .5, 1, 2, 3, 5, 10, 60, 300, 1800, 3600}
		errorIf(t, !slices.Equal(h.Bounds, want) || !slices.Equal(h.BucketCounts, []uint64{2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1}) || h.Sum != 9602.0205,
			"%v: %v, %v s", h.Bounds, h.BucketCounts, h.Sum)
		id := span.SpanContext().TraceID()
		errorIf(t, len(h.Exemplars) != 1 || h.Exemplars[0].Value != 2 || string(h.Exemplars[0].TraceID) != string(id[:]), "%+v", h.Exemplars)
	})
}
