package watch

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"

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
	t := text{Writer: bufio.NewWriter(w)}
	defer t.Flush() // an error means that the scraper has gone
	var of *Metric
	b.Collect(ctx, func(s Sample) {
		if s.Metric != of {
			of = s.Metric
			t.name, t.labels = s.Prometheus()
			t.WriteString("# HELP " + t.name + " " + s.Help + "\n# TYPE " + t.name + " " + s.Kind + "\n")
		}
		if s.Times == nil {
			t.line("", s.Values, "", s.Value)
			return
		}
		within := uint64(0)
		for i := range les {
			within += s.Times.Within[i]
			t.line("_bucket", s.Values, les[i], float64(within))
		}
		t.line("_bucket", s.Values, "+Inf", float64(s.Times.Count))
		t.line("_sum", s.Values, "", s.Value)
		t.line("_count", s.Values, "", float64(s.Times.Count))
	})
}

// les are the store.TimeBounds in seconds.
var les = func() (all [len(store.TimeBounds)]string) {
	for i, bound := range store.TimeBounds {
		all[i] = strconv.FormatFloat(bound.Seconds(), 'g', -1, 64)
	}
	return all
}()

// text is Prometheus text on its way to the scraper.
type text struct {
	*bufio.Writer
	name   string // of the metric
	labels []string
}

// line writes the value of one series. If le is empty, the series has no such label.
func (t *text) line(suffix string, values []string, le string, value float64) {
	t.WriteString(t.name)
	t.WriteString(suffix)
	t.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			t.WriteByte(',')
		}
		t.label(t.labels[i], v)
	}
	if le != "" {
		t.WriteByte(',')
		t.label("le", le)
	}
	t.WriteString("} ")
	if n := int64(value); n >= 0 && float64(n) == value { // as most are, and this is quicker
		t.Write(strconv.AppendInt(t.AvailableBuffer(), n, 10))
	} else {
		t.Write(strconv.AppendFloat(t.AvailableBuffer(), value, 'g', -1, 64))
	}
	t.WriteByte('\n')
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (t *text) label(name, value string) {
	t.WriteString(name)
	t.WriteString(`="`)
	escape.WriteString(t, value)
	t.WriteByte('"')
}
