package otel

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

func TestWaits_AreInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		l := b.Add("api", slow)
		for _, s := range []float64{0, 0.0005, 0.02, 2, 2400, 7200} {
			acquire(t, bg, l, s)
		}
		h := waits(t, r)
		want := []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600}
		if !slices.Equal(h.Bounds, want) || !slices.Equal(h.BucketCounts, []uint64{2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1}) {
			t.Errorf("%v: %v", h.Bounds, h.BucketCounts)
		}
		if h.Sum != 9602.0205 || h.Attributes.Len() != 1 {
			t.Errorf("%v s, %v", h.Sum, h.Attributes)
		}
	})
}

// A call that was not admitted is in no histogram, however long it has waited.
func TestWaits_CancelledOneIsInNoHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		l := b.Add("api", queue.New(bucket(t, outbound.PerHour(1)), queue.Config{MaxWait: 2 * time.Hour}))
		acquire(t, bg, l, 1)
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(time.Minute, cancel)
		if _, err := l.Acquire(ctx, outbound.Cost{1}); err != context.Canceled {
			t.Fatal(err)
		}
		if h := waits(t, r); h.Count != 1 || h.Sum > 0.01 {
			t.Errorf("%d waits of %v s", h.Count, h.Sum)
		}
	})
}

// An exemplar of a wait leads to the caller's trace.
func TestWaits_HaveExemplarsByTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := instrument(t, &b)
		ctx, span := sdktrace.NewTracerProvider().Tracer("").Start(bg, "caller")
		l := b.Add("api", slow)
		acquire(t, ctx, l, 3)
		acquire(t, bg, l, 30)
		all := waits(t, r).Exemplars
		if id := span.SpanContext().TraceID(); len(all) != 1 || all[0].Value != 3 || string(all[0].TraceID) != string(id[:]) {
			t.Errorf("%+v", all)
		}
	})
}

// A wait's span has its true start and end, and is a child of the caller's.
func TestSpan_HasTheStartAndEndOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r, tp := traced(t, &b)
		l := b.Add("github", slow)
		ctx, caller := tp.Tracer("").Start(bg, "caller")
		for _, wait := range []time.Duration{0, time.Millisecond - 1, time.Millisecond, 7 * time.Second} {
			before, start := len(r.Ended()), time.Now()
			acquire(t, ctx, l, wait.Seconds())
			end := time.Now()
			if wait < time.Millisecond {
				if n := len(r.Ended()) - before; n != 0 {
					t.Errorf("%d spans of a wait of %v", n, wait)
				}
				continue
			}
			all := r.Ended()[before:]
			if len(all) != 1 {
				t.Fatalf("%d spans of a wait of %v", len(all), wait)
			}
			s := all[0]
			if s.Name() != "wait for github" || s.SpanKind() != trace.SpanKindInternal || s.Parent().SpanID() != caller.SpanContext().SpanID() {
				t.Errorf("%s, a %v of %v", s.Name(), s.SpanKind(), s.Parent().SpanID())
			}
			if !s.StartTime().Equal(start) || !s.EndTime().Equal(end) || end.Sub(start) != wait {
				t.Errorf("from %v to %v, want from %v to %v", s.StartTime(), s.EndTime(), start, end)
			}
			if got := attributes(s.Attributes()); got != "limiter=github result=admitted" || s.Status().Code != codes.Unset {
				t.Errorf("%s, %v", got, s.Status())
			}
			time.Sleep(time.Second)
		}
		if all := caller.(sdktrace.ReadOnlySpan).Events(); len(all) != 0 {
			t.Errorf("%d events", len(all))
		}
	})
}

// attributes writes attributes in a line.
func attributes(all []attribute.KeyValue) string {
	var s []string
	for _, a := range all {
		s = append(s, string(a.Key)+"="+a.Value.String())
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

// A wait that ends otherwise has a span, too, which says how it has ended.
func TestSpan_HasTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r, tp := traced(t, &b)
		var err error
		l := b.Add("api", limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
			time.Sleep(time.Second)
			if err == nil {
				return outbound.Permit{}, ctx.Err()
			}
			return outbound.Permit{}, err
		}))
		for _, c := range []struct {
			err    error
			result string
			code   codes.Code
			events int
		}{
			{errors.New("secret-key is broken"), "failed", codes.Error, 0},
			{&outbound.ThrottledError{Key: secret, Limit: "per hour", RetryAfter: 90 * time.Second, Held: true, Reason: "quota"}, "refused", codes.Unset, 1},
			{&outbound.ThrottledError{Key: secret, Err: context.Canceled}, "refused", codes.Unset, 1},
			{context.Canceled, "failed", codes.Error, 0}, // not the caller's: its own has not ended
			{nil, "cancelled", codes.Unset, 0},
		} {
			ctx, caller := tp.Tracer("").Start(bg, "caller")
			if err = c.err; err == nil {
				deadline, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				ctx = deadline
			}
			if _, err := l.Acquire(ctx, outbound.Cost{1}); err == nil {
				t.Error("admitted")
			}
			all := r.Ended()
			s := all[len(all)-1]
			if got := attributes(s.Attributes()); got != "limiter=api result="+c.result || s.Status().Code != c.code || s.Status().Description != "" || len(s.Events()) != 0 {
				t.Errorf("%v: %s, %+v", c.err, got, s.Status())
			}
			events := caller.(sdktrace.ReadOnlySpan).Events()
			if len(events) != c.events {
				t.Errorf("%v: %d events", c.err, len(events))
			}
		}
		if n := len(r.Ended()); n != 5 {
			t.Errorf("%d spans", n)
		}
	})
}

// A refusal takes no time, so it is an event of the caller's span. No key is in it.
func TestSpan_RefusalIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r, tp := traced(t, &b)
		l := b.Add("api", bucket(t, outbound.Limit{Name: "per minute", Capacity: 1, LeakRate: 1. / 60}))
		ctx, caller := tp.Tracer("").Start(bg, "caller")
		p := acquire(t, ctx, l, 1)
		if _, err := l.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatal(err)
		}
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: 10 * time.Minute, Reason: "rate"})
		if _, err := l.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatal(err)
		}
		_, _ = b.Add("full", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			return outbound.Permit{}, outbound.ErrThrottled
		})).Acquire(ctx, outbound.Cost{1})
		var got []string
		for _, e := range caller.(sdktrace.ReadOnlySpan).Events() {
			got = append(got, e.Name+": "+attributes(e.Attributes))
		}
		want := []string{
			`refused by api: limit=per minute limiter=api retry_after=60`,
			`refused by api: limiter=api reason=rate retry_after=600`,
			`refused by full: limiter=full`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		if n := len(r.Ended()); n != 0 {
			t.Errorf("%d spans", n)
		}
	})
}

// With a trace that nobody samples, or none, a call allocates as much as without instruments.
func TestSpan_UnsampledCallsAllocateNothing(t *testing.T) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	unsampled, _ := never.Tracer("").Start(bg, "caller")
	for name, ctx := range map[string]context.Context{"no span": bg, "unsampled": unsampled} {
		r := sdkmetric.NewManualReader()
		heard, err := newListener(sdkmetric.NewMeterProvider(sdkmetric.WithReader(r)).Meter(""), never.Tracer(""))
		if err != nil {
			t.Fatal(err)
		}
		refused := &outbound.ThrottledError{Key: secret, Limit: "l", RetryAfter: time.Second}
		n := 0
		for what, c := range map[string]watch.Call{
			"admitted":           {Name: "api"},
			"admitted in a wait": {Name: "api", Wait: time.Second},
			"refused":            {Name: "api", Result: "refused", Err: refused},
			"refused in a wait":  {Name: "api", Wait: time.Second, Result: "refused", Err: refused},
			"failed in a wait":   {Name: "api", Wait: time.Second, Result: "failed", Err: errNoMore},
		} {
			if allocs := testing.AllocsPerRun(100, func() {
				heard.call(ctx, c)
				heard.call(ctx, watch.Call{Name: "other", Result: "failed", Err: errNoMore})
			}); allocs != 0 {
				t.Errorf("%s, %s: %v allocations", name, what, allocs)
			}
			n++
		}
		if got := waits(t, r).Count; n != 5 || got != 202 {
			t.Errorf("%d calls, %d of them admitted", n, got)
		}
		var b watch.Board
		instrument(t, &b)
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}))
		if allocs := testing.AllocsPerRun(100, func() {
			p := acquire(t, ctx, l, 1)
			p.Done()
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// instant is an API that answers at once.
type instant struct{}

func (instant) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// otelhttp in a transport measures the API, and around it the waits as well.
func TestTransport_OtelhttpInsideCountsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		duration := func(wrap func(http.RoundTripper, ...otelhttp.Option) *otelhttp.Transport, outside bool) metricdata.HistogramDataPoint[float64] {
			r, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
			c := Config{sdkmetric.NewMeterProvider(sdkmetric.WithReader(r)), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}
			options := []otelhttp.Option{otelhttp.WithMeterProvider(c.MeterProvider), otelhttp.WithTracerProvider(c.TracerProvider)}
			var b watch.Board
			begin(t, &b, c)
			paced := &transport.Transport{
				Limiter: b.Add("api", queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{})),
				Base:    instant{},
			}
			client := &http.Client{Transport: paced}
			if outside {
				client.Transport = wrap(paced, options...)
			} else {
				paced.Base = wrap(paced.Base, options...)
			}
			ctx, caller := c.TracerProvider.Tracer("").Start(bg, "caller")
			for range 3 {
				request, err := http.NewRequestWithContext(ctx, "GET", "https://api.example.com/secret", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			caller.End()
			if w := waits(t, r); w.Count != 3 || w.Sum < 0.19 || w.Sum > 0.21 {
				t.Errorf("%d waits, %v s", w.Count, w.Sum)
			}
			var last sdktrace.ReadOnlySpan // that has ended before
			for _, s := range spans.Ended() {
				if !outside && last != nil && s.Name() == "HTTP GET" && last.Name() == "wait for api" && !s.StartTime().Equal(last.EndTime()) {
					t.Errorf("the wait ended at %v, and the request began at %v", last.EndTime(), s.StartTime())
				}
				last = s
			}
			if n := len(spans.Ended()); n != 6 {
				t.Errorf("%d spans", n)
			}
			return find(t, collect(t, r), "http.client.request.duration").(metricdata.Histogram[float64]).DataPoints[0]
		}
		if d := duration(otelhttp.NewTransport, false); d.Count != 3 || d.Sum != 0 {
			t.Errorf("inside: %d requests, %v s", d.Count, d.Sum)
		}
		if d := duration(otelhttp.NewTransport, true); d.Count != 3 || d.Sum < 0.19 {
			t.Errorf("outside: %d requests, %v s", d.Count, d.Sum)
		}
	})
}
