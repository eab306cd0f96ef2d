package otel

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

const (
	waitTime     = "dripfeed.call.wait_time"
	waitTimeHelp = "How long calls waited that were admitted."
)

// bounds are the upper ends of the histogram's buckets, in seconds: those of [watch.Board.Metrics].
var bounds = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600}

// shortest is how long a wait must be to have a span.
const shortest = time.Millisecond

// listener hears of calls. It records waits, and makes spans and events of them.
type listener struct {
	waits  metric.Float64Histogram
	tracer trace.Tracer
	named  atomic.Pointer[map[string]*named] // a map never changes
}

// named is what is made once for each name, so that no call has to.
type named struct {
	options []metric.RecordOption
	limiter attribute.KeyValue
	span    string
	event   string
}

func newListener(m metric.Meter, t trace.Tracer) (*listener, error) {
	h, err := m.Float64Histogram(waitTime, metric.WithUnit("s"), metric.WithDescription(waitTimeHelp),
		metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		return nil, err
	}
	l := &listener{waits: h, tracer: t}
	l.named.Store(&map[string]*named{})
	return l, nil
}

// of returns what was made for a name. Of two new names at the same time it may keep one, and the other is made again
// by its next call.
func (l *listener) of(name string) *named {
	all := *l.named.Load()
	if n := all[name]; n != nil {
		return n
	}
	limiter := text("limiter", name)
	n := &named{
		options: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(limiter))},
		limiter: limiter,
		span:    "wait for " + limiter.Value.AsString(),
		event:   "refused by " + limiter.Value.AsString(),
	}
	next := maps.Clone(all)
	next[name] = n
	l.named.Store(&next)
	return n
}

// call hears of a call: it is for [watch.Board.OnCall]. Where no span records, it allocates nothing.
func (l *listener) call(ctx context.Context, c watch.Call) {
	n := l.of(c.Name)
	if c.Err == nil {
		l.waits.Record(ctx, c.Wait.Seconds(), n.options...)
		if c.Wait < shortest {
			return
		}
	}
	span := trace.SpanFromContext(ctx)
	if c.Wait >= shortest && span.SpanContext().IsSampled() {
		l.span(ctx, n, &c)
	}
	if c.Err != nil && span.IsRecording() && resultOf(ctx, c.Err) == "refused" {
		span.AddEvent(n.event, trace.WithAttributes(n.refusal(c.Err)...))
	}
}

// span makes the span of a wait that is over.
func (l *listener) span(ctx context.Context, n *named, c *watch.Call) {
	end := time.Now()
	result := resultOf(ctx, c.Err)
	_, span := l.tracer.Start(ctx, n.span, trace.WithTimestamp(end.Add(-c.Wait)),
		trace.WithAttributes(n.limiter, attribute.String("result", result)))
	if result == "failed" {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(end))
}

// refusal returns what an event tells of a refusal. The error's text and its key are no part of it: a key may be a
// secret.
func (n *named) refusal(err error) []attribute.KeyValue {
	all := []attribute.KeyValue{n.limiter}
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		return all
	}
	if full.Limit != "" {
		all = append(all, text("limit", full.Limit))
	}
	if full.Reason != "" {
		all = append(all, text("reason", full.Reason))
	}
	if full.RetryAfter > 0 {
		all = append(all, attribute.Float64("retry_after", full.RetryAfter.Seconds()))
	}
	return all
}

// resultOf returns what became of a call, as the Board counts it.
func resultOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "admitted"
	case errors.Is(err, outbound.ErrThrottled):
		return "refused"
	case err == ctx.Err() || errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "failed"
}
