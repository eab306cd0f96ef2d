package otel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// shortest is how long a wait must be to have a span.
const shortest = time.Millisecond

// listener records the waits of calls, and makes spans and events of them.
type listener struct {
	waits  metric.Float64Histogram
	tracer trace.Tracer

	mu    sync.RWMutex // protects what follows
	names map[string]*named
}

// named is what is made once for each name, so that no call has to.
type named struct {
	options []metric.RecordOption
	limiter attribute.KeyValue
}

// of returns what was made for a name.
func (l *listener) of(name string) *named {
	l.mu.RLock()
	n := l.names[name]
	l.mu.RUnlock()
	if n == nil {
		limiter := attribute.String("limiter", name)
		n = &named{[]metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(limiter))}, limiter}
		l.mu.Lock()
		l.names[name] = n
		l.mu.Unlock()
	}
	return n
}

// call is for the Board's OnCall. It allocates only if a span records.
func (l *listener) call(ctx context.Context, c watch.Call) {
	n, span := l.of(c.Name), trace.SpanFromContext(ctx)
	if c.Err == nil {
		l.waits.Record(ctx, c.Wait.Seconds(), n.options...)
	}
	if c.Wait >= shortest && span.SpanContext().IsSampled() {
		end := time.Now()
		_, span := l.tracer.Start(ctx, "wait for "+c.Name, trace.WithTimestamp(end.Add(-c.Wait)),
			trace.WithAttributes(n.limiter, attribute.String("result", c.Result)))
		if c.Result == "failed" {
			span.SetStatus(codes.Error, "")
		}
		span.End(trace.WithTimestamp(end))
	}
	if c.Result == "refused" && span.IsRecording() {
		span.AddEvent("refused by "+c.Name, trace.WithAttributes(append(refusal(c.Err), n.limiter)...))
	}
}

// refusal returns what an event has of a refusal. It omits the error's text and key, which may be a
// secret.
func refusal(err error) (all []attribute.KeyValue) {
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		return nil
	}
	for _, a := range [...][2]string{{"limit", full.Limit}, {"reason", full.Reason}} {
		if a[1] != "" {
			all = append(all, attribute.String(a[0], strings.ToValidUTF8(a[1], "\uFFFD")))
		}
	}
	if full.RetryAfter > 0 {
		all = append(all, attribute.Float64("retry_after", full.RetryAfter.Seconds()))
	}
	return all
}
