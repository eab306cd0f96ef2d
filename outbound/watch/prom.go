package watch

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Metrics returns a handler that serves what [Board.Collect] collects as Prometheus text. Series
// are by limiter and limit, whatever the number of keys. No label has a key, a URL or a host in it.
func (b *Board) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		b.prometheus(r.Context(), w)
	})
}

// prometheus writes what the Board has counted.
func (b *Board) prometheus(ctx context.Context, w io.Writer) {
	t := text{buf: make([]byte, 0, 2*flushAt)}
	var of *Metric
	b.Collect(ctx, func(s Sample) {
		if s.Metric != of {
			of = s.Metric
			t.name, t.labels = s.Prometheus()
			t.buf = append(t.buf, "# HELP "+t.name+" "+s.Help+"\n# TYPE "+t.name+" "+s.Kind+"\n"...)
		}
		t.sample(&s)
		if len(t.buf) > flushAt {
			_, _ = w.Write(t.buf) // an error means that the scraper has gone
			t.buf = t.buf[:0]
		}
	})
	_, _ = w.Write(t.buf)
}

// les are the labels of the buckets of histograms: the store.TimeBounds in seconds, and no bound.
var les = func() (all [len(store.TimeBounds) + 1]string) {
	for i := range all {
		bound := "+Inf"
		if i < len(store.TimeBounds) {
			bound = strconv.FormatFloat(store.TimeBounds[i].Seconds(), 'g', -1, 64)
		}
		all[i] = `,le="` + bound + `"`
	}
	return all
}()

const flushAt = 16 << 10 // bytes of text that are written together

// text is Prometheus text on its way to the scraper.
type text struct {
	buf    []byte
	name   string // of the metric
	labels []string
	series []byte // the labels of the sample, without the last brace
}

// sample writes the lines of one series, or of one histogram.
func (t *text) sample(s *Sample) {
	t.series = t.series[:0]
	for i, v := range s.Values {
		t.series = append(append(append(t.series, "{,,"[i]), t.labels[i]...), `="`...)
		for _, c := range []byte(v) {
			switch c {
			case '\\', '"':
				t.series = append(t.series, '\\')
			case '\n':
				t.series, c = append(t.series, '\\'), 'n'
			}
			t.series = append(t.series, c)
		}
		t.series = append(t.series, '"')
	}
	if s.Times == nil {
		t.line("", "", s.Value)
		return
	}
	within := uint64(0)
	for i := range s.Times.Within {
		within += s.Times.Within[i]
		t.line("_bucket", les[i], float64(within))
	}
	t.line("_bucket", les[len(store.TimeBounds)], float64(s.Times.Count))
	t.line("_sum", "", s.Value)
	t.line("_count", "", float64(s.Times.Count))
}

// line writes one number. le is the label of a histogram's bucket, or empty.
func (t *text) line(suffix, le string, value float64) {
	b := append(append(append(append(t.buf, t.name...), suffix...), t.series...), le...)
	b = append(b, "} "...)
	if n := int64(value); n >= 0 && float64(n) == value { // as most are, and this is quicker
		b = strconv.AppendInt(b, n, 10)
	} else {
		b = strconv.AppendFloat(b, value, 'g', -1, 64)
	}
	t.buf = append(b, '\n')
}
