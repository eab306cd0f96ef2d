package otel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

type noopMeter = noop.Meter

// failing is a provider and a Meter that makes all instruments but one.
type failing struct {
	noopMeter
	embedded.MeterProvider
	embedded.Registration
	left, unregistered int
}

var errNoMore = errors.New("no more")

// next returns an error if no instrument is left before the one that fails.
func (f *failing) next() error {
	if f.left--; f.left == -1 {
		return errNoMore
	}
	return nil
}

func (f *failing) Meter(string, ...metric.MeterOption) metric.Meter { return f }

func (f *failing) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noop.Float64Histogram{}, f.next()
}

func (f *failing) Float64ObservableCounter(string, ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	return nil, f.next()
}

func (f *failing) Float64ObservableGauge(string, ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return nil, f.next()
}

func (f *failing) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return f, f.next()
}

func (f *failing) Unregister() error {
	f.unregistered++
	return fmt.Errorf("unregistered %d times", f.unregistered)
}

// A provider that fails leaves the Board alone. stop returns its error, and calls it once.
func TestInstrument_FailingProviderIsAnError(t *testing.T) {
	var b watch.Board
	for n := range len(watch.AllMetrics()) + 1 {
		stop, err := Instrument(&b, Config{MeterProvider: &failing{left: n}})
		errorIf(t, err != errNoMore || stop != nil || b.OnCall != nil, "with %d instruments: %v", n, err)
	}
	stop := must(Instrument(&b, Config{MeterProvider: &failing{left: 100}}))
	for range 2 {
		err := stop()
		errorIf(t, err == nil || err.Error() != "unregistered 1 times", "%v", err)
	}
	_, err := Instrument(nil, Config{})
	errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%v", err)
}

// After stop nothing is reported. The Board's own OnCall goes on.
func TestInstrument_StopEndsIt(t *testing.T) {
	var b watch.Board
	calls := 0
	b.OnCall = func(context.Context, watch.Call) { calls++ }
	s := instrument(t, &b)
	l := b.Add("api", slow)
	acquire(t, bg, l, 0)
	all := s.collect(t)
	errorIf(t, len(all) < 3, "%d metrics", len(all)) // calls, units, and the histogram
	err := s.stop()
	errorIf(t, err != nil, "%v", err)
	acquire(t, bg, l, 0)
	all, n := s.collect(t), s.durations(t, "dripfeed.call.wait_time").Count
	errorIf(t, len(all) != 1 || n != 1 || calls != 2, "%d metrics, %d of %d calls", len(all), n, calls)
}

// The table in the package's documentation has each instrument, as it is.
func TestInstrument_DocHasEachInstrument(t *testing.T) {
	doc := must(os.ReadFile("doc.go"))
	line := regexp.MustCompile(`(?m)^//\t(dripfeed\.[a-z_.]+) +(counter|gauge|histogram)  +(\S+)  `)
	var got, want []string
	for _, m := range line.FindAllStringSubmatch(string(doc), -1) {
		got = append(got, fmt.Sprint(m[1:]))
	}
	for _, m := range watch.AllMetrics() {
		name, kind, unit := m.Name, m.Kind, m.Unit
		if kind == watch.Histogram && m.Labels[0] == "store" {
			name, kind = name+".sum", watch.Counter
		}
		if unit == "" {
			unit = "-"
		}
		want = append(want, fmt.Sprint([]string{name, kind, unit}))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("documented:\n%s\nmade:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// globals sets the global providers, which can be done once in a process.
var globals = sync.OnceValue(func() *sdk {
	s := &sdk{metrics: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	api.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics)))
	api.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans)))
	return s
})

// The global providers may be set after Instrument.
func TestInstrument_GlobalProvidersMayComeLater(t *testing.T) {
	var b watch.Board
	stop := must(Instrument(&b, Config{}))
	s := globals()
	before := len(s.spans.Ended())
	ctx, _ := api.Tracer("").Start(bg, "caller")
	acquire(t, ctx, b.Add("api", slow), 0.002)
	values := series(t, s.collect(t))
	n := len(s.spans.Ended()) - before
	errorIf(t, n != 1 || values["dripfeed.calls{limiter=api,result=admitted}"] != 1 || s.durations(t, "dripfeed.call.wait_time").Count == 0, "%d spans, %v", n, values)
	err := stop()
	errorIf(t, err != nil, "%v", err) // a second run of this test has the same providers
}

// Calls, new names, collections and the end may come at the same time.
func TestInstrument_IsSafeForConcurrentUse(t *testing.T) {
	var b watch.Board
	s := instrument(t, &b)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			l := b.Add(string(rune('a'+i%4)), boardtest.Bucket(outbound.Limit{Capacity: 1e6, LeakRate: 1}))
			for range 200 {
				acquire(t, bg, l, 1)
			}
		})
		all.Go(func() {
			for range 5 {
				s.collect(t)
			}
		})
	}
	all.Wait()
	values := series(t, s.collect(t))
	for _, name := range []string{"a", "b", "c", "d"} {
		n := values["dripfeed.calls{limiter="+name+",result=admitted}"]
		errorIf(t, n != 400, "%s: %v calls", name, n)
	}
	for _, h := range s.collect(t)["dripfeed.call.wait_time"].Data.(metricdata.Histogram[float64]).DataPoints {
		errorIf(t, h.Count != 400, "%d waits", h.Count)
	}
}

// Users of this package get the API of OpenTelemetry, and no SDK or exporter.
func TestDeps_AreTheAPIOnly(t *testing.T) {
	out := must(exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output())
	errorIf(t, !slices.Contains(strings.Fields(string(out)), "go.opentelemetry.io/otel/metric"),
		"the API is not listed, so nothing was checked")
	for _, other := range []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/contrib", "github.com/prometheus"} {
		errorIf(t, strings.Contains(string(out), other), "%s is reached", other)
	}
}
