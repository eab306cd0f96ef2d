package outbound_test

import (
	"context"
	"expvar"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Counters for a dashboard, here of package expvar, and a line in the log for what an operator must learn of. The names
// are few and known beforehand: none is a tenant's.
func ExampleObserve_metrics() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	calls := new(expvar.Map) // expvar.NewMap("outbound_calls") publishes it
	observe := func(ctx context.Context, e outbound.Event) {
		calls.Add(e.Name+" "+e.Kind, 1)
		calls.AddFloat(e.Name+" waited seconds", e.Wait.Seconds())
		switch e.Kind {
		case outbound.EventHeld:
			log.WarnContext(ctx, "the API asks to wait", "api", e.Name, "hold", e.Hold, "reason", e.Reason)
		case outbound.EventFailed:
			log.ErrorContext(ctx, "a call cannot be admitted", "api", e.Name, "error", e.Err)
		}
	}
	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerHour(100).Burst(10)))
	limiter := outbound.Observe(bucket, "weather", observe)

	for range 2 {
		permit, err := limiter.Acquire(context.Background(), outbound.Cost{1})
		if err != nil {
			continue
		}
		// Package transport does it when the API answers 429.
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
		permit.Done()
	}
	for _, kind := range []string{outbound.EventAdmitted, outbound.EventRefused, outbound.EventHeld} {
		fmt.Println("weather", kind, calls.Get("weather "+kind))
	}
	// Output:
	// level=WARN msg="the API asks to wait" api=weather hold=1m0s reason=rate
	// weather admitted 1
	// weather refused 1
	// weather held 1
}

// withoutTime leaves the time out of a line of the log, which here would be another one
// in each run.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
