package otel

import (
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
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// failing is a provider whose Meter makes as many instruments as it has left.
type failing struct {
	embedded.MeterProvider
	left int
}

func (f *failing) Meter(string, ...metric.MeterOption) metric.Meter {
	return &failingMeter{left: f.left}
}

type failingMeter struct {
	noop.Meter
	left int
}

var errNoMore = errors.New("no more")

// next is the error of what is asked for.
func (f *failingMeter) next() error {
	f.left--
	if f.left < 0 {
		return errNoMore
	}
	return nil
}

func (f *failingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noop.Float64Histogram{}, f.next()
}

func (f *failingMeter) Float64ObservableCounter(string, ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	return nil, f.next()
}

func (f *failingMeter) Float64ObservableGauge(string, ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return nil, f.next()
}

func (f *failingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return &unregistered{}, f.next()
}

type unregistered struct {
	embedded.Registration
	times int
}

func (u *unregistered) Unregister() error {
	u.times++
	return fmt.Errorf("unregistered %d times", u.times)
}

// A provider that fails leaves the Board alone, and its last error is stop's.
func TestInstrument_FailingProviderIsAnError(t *testing.T) {
	var b watch.Board
	l := b.Add("api", slow)
	for n := range len(watch.AllMetrics()) + 1 {
		if stop, err := Instrument(&b, Config{MeterProvider: &failing{left: n}}); err != errNoMore || stop != nil {
			t.Errorf("with %d instruments: %v", n, err)
		}
		acquire(t, bg, l, 0) // a listener would use the histogram, which is nil
	}
	stop, err := Instrument(&b, Config{MeterProvider: &failing{left: 100}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stop(); err == nil || err.Error() != "unregistered 1 times" {
			t.Error(err)
		}
	}
	acquire(t, bg, l, 0)
	if _, err := Instrument(nil, Config{}); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
}

// After stop nothing is reported.
func TestInstrument_StopEndsIt(t *testing.T) {
	var b watch.Board
	r := sdkmetric.NewManualReader()
	stop, err := Instrument(&b, Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))})
	if err != nil {
		t.Fatal(err)
	}
	l := b.Add("api", slow)
	acquire(t, bg, l, 0)
	if all := collect(t, r); len(all) < 3 { // calls, units, and the histogram
		t.Errorf("%d metrics", len(all))
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	acquire(t, bg, l, 0)
	if n := waits(t, r).Count; n != 1 {
		t.Errorf("%d calls", n)
	}
	if all := collect(t, r); len(all) != 1 {
		t.Errorf("%d metrics", len(all))
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The table in the package's documentation has each instrument, as it is.
func TestInstrument_DocHasEachInstrument(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
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

// setGlobals sets the global providers, which can be done once in a process.
var setGlobals = sync.OnceValues(func() (*sdkmetric.ManualReader, *tracetest.SpanRecorder) {
	r, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	api.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(r)))
	api.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	return r, spans
})

// The global providers may be set after Instrument.
func TestInstrument_GlobalProvidersMayComeLater(t *testing.T) {
	var b watch.Board
	begin(t, &b, Config{})
	r, spans := setGlobals()
	before := len(spans.Ended())
	ctx, _ := api.Tracer("").Start(bg, "caller")
	acquire(t, ctx, b.Add("api", slow), 0.002)
	if n := len(spans.Ended()) - before; waits(t, r).Count == 0 || n != 1 {
		t.Errorf("%d spans", n)
	}
	if values, _ := samples(t, collect(t, r)); values[`dripfeed_calls_total{limiter="api",result="admitted"}`] != 1 {
		t.Errorf("%v", values)
	}
}

// Calls, new names, collections and the end may come at the same time.
func TestInstrument_IsSafeForConcurrentUse(t *testing.T) {
	var b watch.Board
	r, other := sdkmetric.NewManualReader(), sdkmetric.NewManualReader()
	stop, err := Instrument(&b, Config{sdkmetric.NewMeterProvider(sdkmetric.WithReader(r), sdkmetric.WithReader(other)), tracenoop.NewTracerProvider()})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			l := b.Add(string(rune('a'+i%4)), bucket(t, outbound.Limit{Capacity: 1e6, LeakRate: 1}))
			for range 200 {
				if p, err := l.Acquire(bg, outbound.Cost{1}); err == nil {
					p.Done()
				}
			}
		})
	}
	for _, r := range []sdkmetric.Reader{r, other} {
		all.Go(func() {
			for range 20 {
				collect(t, r)
			}
		})
	}
	all.Wait()
	values, _ := samples(t, collect(t, r))
	for _, name := range []string{"a", "b", "c", "d"} {
		if n, w := values[`dripfeed_calls_total{limiter="`+name+`",result="admitted"}`], values[`dripfeed_call_wait_time_seconds_count{limiter="`+name+`"}`]; n != 400 || w != 400 {
			t.Errorf("%s: %v calls and %v waits", name, n, w)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Users of this package get the API of OpenTelemetry, and no SDK or exporter.
func TestDeps_AreTheAPIOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		switch {
		case strings.HasPrefix(path, "go.opentelemetry.io/otel/sdk"), strings.HasPrefix(path, "go.opentelemetry.io/otel/exporters"),
			strings.HasPrefix(path, "go.opentelemetry.io/contrib"), strings.HasPrefix(path, "github.com/prometheus"):
			t.Errorf("%s is reached", path)
		}
		found = found || path == "go.opentelemetry.io/otel/metric"
	}
	if !found {
		t.Error("the API is not listed, so nothing was checked")
	}
}
