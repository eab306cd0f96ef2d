package otel_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/otel"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// run is the code of the README.
func run(bucket *outbound.Bucket, work func(*http.Client) error) error {
	var board watch.Board
	limiter := board.Add("github", queue.New(bucket, queue.Config{})) // use the result
	stop, err := otel.Instrument(&board, otel.Config{})               // with the global providers
	if err != nil {
		return err
	}
	defer stop()
	client := &http.Client{Transport: &transport.Transport{
		Limiter: limiter,
		Base:    otelhttp.NewTransport(http.DefaultTransport), // inside, so that its durations exclude the waits
	}}
	return work(client)
}

// The code of the README is compiled, and runs.
func TestReadme_HasCodeThatRuns(t *testing.T) {
	readme, _ := os.ReadFile("README.md")
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(code), ") error {\n")
	want, _, _ = strings.Cut(want, "\n}\n")
	if block := "```go\n" + strings.ReplaceAll(want[1:], "\n\t", "\n") + "\n```"; !strings.Contains(string(readme), block) {
		t.Errorf("README.md lacks\n%s", block)
	}
	used := false
	if err := run(outbound.Must(outbound.NewBucket("github", outbound.PerSecond(10))), func(c *http.Client) error {
		used = c != nil
		return nil
	}); err != nil || !used {
		t.Error(err)
	}
}

func ExampleInstrument() {
	reader := sdkmetric.NewManualReader() // in a program: a PeriodicReader with an exporter
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	var board watch.Board
	stop, err := otel.Instrument(&board, otel.Config{MeterProvider: provider})
	if err != nil {
		panic(err)
	}
	defer func() { _ = stop() }() // the program ends

	bucket := outbound.Must(outbound.NewBucket("weather", outbound.Window(2, time.Hour)))
	limiter := board.Add("weather", bucket)
	for range 3 {
		if permit, err := limiter.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			permit.Done()
		}
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if calls, ok := m.Data.(metricdata.Sum[float64]); ok && m.Name == "dripfeed.calls" {
			for _, p := range calls.DataPoints {
				result, _ := p.Attributes.Value("result")
				fmt.Println(result.AsString(), p.Value)
			}
		}
	}
	// Unordered output:
	// admitted 2
	// refused 1
	// cancelled 0
	// failed 0
}
