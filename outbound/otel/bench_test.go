package otel

import (
	"context"
	"fmt"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// What a call costs with a Board, and with instruments for it.
func BenchmarkCall(b *testing.B) {
	never, _ := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("").Start(bg, "caller")
	always, _ := sdktrace.NewTracerProvider().Tracer("").Start(bg, "caller")
	for _, result := range []string{"admitted", "refused"} {
		limit := outbound.Limit{Capacity: 1e9, LeakRate: 1e9}
		if result == "refused" {
			limit = outbound.Limit{Capacity: 1, LeakRate: 1e-9}
		}
		for _, way := range []struct {
			name       string
			ctx        context.Context
			instrument bool
		}{
			{"board", bg, false}, {"instrumented", bg, true}, {"unsampled", never, true}, {"sampled", always, true},
		} {
			b.Run(result+"/"+way.name, func(b *testing.B) {
				var board watch.Board
				l := board.Add("api", bucket(b, limit))
				if way.instrument {
					instrument(b, &board)
				}
				if result == "refused" {
					acquire(b, bg, l, 1)
				}
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
			r := instrument(b, &board)
			for i := range n {
				acquire(b, bg, board.Add(fmt.Sprint(i), bucket(b, outbound.PerSecond(10), outbound.PerHour(1000))), 1)
			}
			var all metricdata.ResourceMetrics
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Collect(bg, &all); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSpan is what a call costs that has waited in a sampled trace.
func BenchmarkSpan(b *testing.B) {
	tp := sdktrace.NewTracerProvider()
	h, err := newListener(sdkmetric.NewMeterProvider().Meter(""), tp.Tracer(""))
	if err != nil {
		b.Fatal(err)
	}
	ctx, _ := tp.Tracer("").Start(bg, "caller")
	b.ReportAllocs()
	for b.Loop() {
		h.call(ctx, watch.Call{Name: "api", Wait: shortest})
	}
}
