package otel

import (
	"context"
	"fmt"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// What a call costs with a Board, and with instruments for it.
func BenchmarkCall(b *testing.B) {
	never, _ := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("").Start(bg, "caller")
	always, _ := sdktrace.NewTracerProvider().Tracer("").Start(bg, "caller")
	for result, limit := range map[string]outbound.Limit{"admitted": {Capacity: 1e9, LeakRate: 1e9}, "refused": {Capacity: 1, LeakRate: 1e-9}} {
		for _, way := range []struct {
			name       string
			ctx        context.Context
			instrument bool
		}{
			{"board", bg, false}, {"instrumented", bg, true}, {"unsampled", never, true}, {"sampled", always, true},
		} {
			b.Run(result+"/"+way.name, func(b *testing.B) {
				var board watch.Board
				l := board.Add("api", boardtest.Bucket(limit))
				if way.instrument {
					instrument(b, &board)
				}
				acquire(b, bg, l, 1)
				b.ReportAllocs()
				for b.Loop() {
					if p, err := l.Acquire(way.ctx, outbound.Cost{1}); err == nil {
						p.Done()
					}
				}
			})
		}
	}
}

func BenchmarkCollect(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n, " limiters"), func(b *testing.B) {
			var board watch.Board
			s := instrument(b, &board)
			for i := range n {
				acquire(b, bg, board.Add(fmt.Sprint(i), boardtest.Bucket(outbound.PerSecond(10), outbound.PerHour(1000))), 1)
			}
			var all metricdata.ResourceMetrics
			b.ReportAllocs()
			for b.Loop() {
				if err := s.metrics.Collect(bg, &all); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSpan is what a call costs that has waited in a sampled trace.
func BenchmarkSpan(b *testing.B) {
	var board watch.Board
	tp := sdktrace.NewTracerProvider()
	if _, err := Instrument(&board, Config{sdkmetric.NewMeterProvider(), tp}); err != nil {
		b.Fatal(err)
	}
	ctx, _ := tp.Tracer("").Start(bg, "caller")
	b.ReportAllocs()
	for b.Loop() {
		board.OnCall(ctx, watch.Call{Name: "api", Wait: shortest})
	}
}
