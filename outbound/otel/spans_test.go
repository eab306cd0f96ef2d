package otel

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// A wait of a millisecond or longer is a span with its start, end and result. A refusal is an event
// of the caller's span. Neither has the key, nor the text of an error.
func TestSpans_OfWaitsAndRefusals(t *testing.T) {
	late := errors.New("late")
	for name, c := range map[string]struct {
		wait    time.Duration
		err     error
		timeout time.Duration
		span    string
		status  codes.Code
		event   string
	}{
		"immediate":         {},
		"short":             {wait: time.Millisecond - 1},
		"long enough":       {wait: time.Millisecond, span: "limiter=api,result=admitted"},
		"long":              {wait: 7 * time.Second, span: "limiter=api,result=admitted"},
		"failed":            {wait: time.Second, err: errors.New(boardtest.Secret), span: "limiter=api,result=failed", status: codes.Error},
		"another's context": {wait: time.Second, err: context.Canceled, span: "limiter=api,result=failed", status: codes.Error},
		"cancelled":         {wait: time.Second, timeout: time.Millisecond, err: late, span: "limiter=api,result=cancelled"},
		"refused immediately": {err: &outbound.ThrottledError{Key: boardtest.Secret, Limit: "per\xffhour", RetryAfter: 90 * time.Second, Reason: "quota"},
			event: "limit=per\uFFFDhour,limiter=api,reason=quota,retry_after=90"},
		"refused":                    {wait: time.Second, err: &outbound.ThrottledError{Key: boardtest.Secret, Err: context.Canceled}, span: "limiter=api,result=refused", event: "limiter=api"},
		"refused by another limiter": {err: outbound.ErrThrottled, event: "limiter=api"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b watch.Board
				s := instrument(t, &b)
				l := b.Add("api", boardtest.Limiter(func(context.Context, outbound.Cost) (p outbound.Permit, err error) {
					time.Sleep(c.wait)
					return p, c.err
				}))
				ctx, caller := s.TracerProvider.Tracer("").Start(bg, "caller")
				if c.timeout > 0 {
					deadline, cancel := context.WithTimeoutCause(ctx, c.timeout, late)
					defer cancel()
					ctx = deadline
				}
				start := time.Now()
				_, _ = l.Acquire(ctx, outbound.Cost{1})
				got := ""
				for _, s := range s.spans.Ended() {
					got += text(attribute.NewSet(s.Attributes()...))
					if s.Name() != "wait for api" || s.SpanKind() != trace.SpanKindInternal || s.Parent().SpanID() != caller.SpanContext().SpanID() {
						t.Errorf("%s, a %v of %v", s.Name(), s.SpanKind(), s.Parent().SpanID())
					}
					if !s.StartTime().Equal(start) || s.EndTime().Sub(start) != c.wait {
						t.Errorf("from %v to %v, want %v from %v on", s.StartTime(), s.EndTime(), c.wait, start)
					}
					if s.Status() != (sdktrace.Status{Code: c.status}) || len(s.Events()) != 0 {
						t.Errorf("%+v, %v", s.Status(), s.Events())
					}
				}
				errorIf(t, got != c.span, "the span is %q, want %q", got, c.span)
				got = ""
				for _, e := range caller.(sdktrace.ReadOnlySpan).Events() {
					got += text(attribute.NewSet(e.Attributes...))
					errorIf(t, e.Name != "refused by api", "event %q", e.Name)
				}
				errorIf(t, got != c.event, "the event is %q, want %q", got, c.event)
			})
		})
	}
}

// In a trace that is not sampled, and without one, a call allocates as much as without instruments.
func TestSpans_UnsampledCallsAllocateNothing(t *testing.T) {
	unsampled, _ := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("").Start(bg, "caller")
	var b watch.Board
	s := instrument(t, &b)
	refused := &outbound.ThrottledError{Key: boardtest.Secret, Limit: "l", RetryAfter: time.Second}
	for name, ctx := range map[string]context.Context{"no span": bg, "unsampled": unsampled} {
		for what, c := range map[string]watch.Call{
			"admitted":           {Name: "api"},
			"admitted in a wait": {Name: "api", Wait: time.Second},
			"refused":            {Name: "api", Result: "refused", Err: refused},
			"refused in a wait":  {Name: "api", Wait: time.Second, Result: "refused", Err: refused},
			"failed in a wait":   {Name: "api", Wait: time.Second, Result: "failed", Err: errNoMore},
		} {
			allocs := testing.AllocsPerRun(100, func() {
				b.OnCall(ctx, c)
				b.OnCall(ctx, watch.Call{Name: "other", Result: "failed", Err: errNoMore})
			})
			errorIf(t, allocs != 0, "%s, %s: %v allocations", name, what, allocs)
		}
	}
	n := s.durations(t, "dripfeed.call.wait_time").Count
	errorIf(t, n != 404, "%d calls, want 101 in each of 4 runs", n)
}

// roundTripper is a function that is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// With otelhttp inside the transport, the span and the duration of a request begin when its wait ends.
func TestTransport_OtelhttpInsideCountsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		s := instrument(t, &b)
		api := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		client := &http.Client{Transport: &transport.Transport{
			Limiter: b.Add("api", queue.New(boardtest.Bucket(outbound.PerSecond(10)), queue.Config{})),
			Base:    otelhttp.NewTransport(api, otelhttp.WithMeterProvider(s.MeterProvider), otelhttp.WithTracerProvider(s.TracerProvider)),
		}}
		ctx, _ := s.TracerProvider.Tracer("").Start(bg, "caller")
		for range 3 {
			request := must(http.NewRequestWithContext(ctx, "GET", "https://api.example.com/secret", nil))
			response := must(client.Do(request))
			_ = response.Body.Close()
		}
		w := s.durations(t, "dripfeed.call.wait_time")
		errorIf(t, w.Count != 3 || w.Sum < 0.19 || w.Sum > 0.21, "%d waits, %v s", w.Count, w.Sum)
		d := s.durations(t, "http.client.request.duration")
		errorIf(t, d.Count != 3 || d.Sum != 0, "%d requests, %v s", d.Count, d.Sum)
		all := s.spans.Ended() // of the first request, and of the wait and the request of two
		if len(all) != 5 {
			t.Fatalf("%d spans", len(all))
		}
		for i := 1; i < 5; i += 2 {
			if wait, request := all[i], all[i+1]; wait.Name() != "wait for api" || !request.StartTime().Equal(wait.EndTime()) {
				t.Errorf("%s ended at %v, and %s began at %v", wait.Name(), wait.EndTime(), request.Name(), request.StartTime())
			}
		}
	})
}
