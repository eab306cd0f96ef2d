package watch

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// hostile are names that break texts which are careless.
var hostile = []string{`<img src=x onerror="alert(1)">`, "quote\" back\\slash", "new\nline\r", "not \xff\xfe UTF-8", "\u202Eright to left", strings.Repeat("long ", 3000), ""}

// sampleLine is a line of Prometheus text.
var sampleLine = regexp.MustCompile(`^([a-z_]+)(\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)$`)

func TestHostileNamesDoNotBreakTheMetrics(t *testing.T) {
	var b Board
	for _, name := range hostile {
		l := b.Add(name, bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.001, Name: strings.ToValidUTF8(name, "?")}))
		for range 2 {
			p, _ := l.Acquire(bg, outbound.Cost{1})
			p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: name, Unit: name, Limit: 5, Remaining: 3, Reset: time.Hour}})
		}
	}
	text := metricsOf(&b)
	if !utf8.ValidString(text) {
		t.Error("the text is no UTF-8")
	}
	seen, types := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if head, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(head, " ")
			if types[name] {
				t.Errorf("%s has two types", name)
			}
			types[name] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no line of Prometheus text: %q", line)
		}
		series, _, _ := strings.Cut(line, "} ")
		if seen[series] {
			t.Errorf("twice: %s", series)
		}
		seen[series] = true
		base := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		if !types[base] {
			t.Errorf("%s has no type", m[1])
		}
	}
	if n := strings.Count(text, "dripfeed_api_remaining{"); n != len(hostile) {
		t.Errorf("%d budgets", n)
	}
	jsonOf(t, b.Snapshot(bg, Query{}))
}

func TestMetricsAreServed(t *testing.T) {
	var b Board
	b.Add("api", bucket(t, outbound.PerSecond(1)))
	get := func(method string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		b.Metrics().ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		return w
	}
	if w := get(http.MethodGet); w.Code != 200 || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" ||
		!strings.Contains(w.Body.String(), `dripfeed_calls_total{limiter="api",result="admitted",error_type=""} 0`+"\n") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// The histogram's buckets are cumulative, in seconds, and end with all.
func TestTheHistogramIsInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		l := b.Add("api", queue.New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 2}), queue.Config{}))
		for range 5 {
			if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		text := metricsOf(&b)
		for _, line := range []string{
			`_bucket{limiter="api",le="0.001"} 1`, `_bucket{limiter="api",le="0.5"} 5`, `_bucket{limiter="api",le="3600"} 5`,
			`_bucket{limiter="api",le="+Inf"} 5`, `_sum{limiter="api"} 2`, `_count{limiter="api"} 5`,
		} {
			if !strings.Contains(text, "dripfeed_call_wait_time_seconds"+line+"\n") {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
	})
}

// Names that look alike when they are cut or mended have series of their own: a scrape with one twice is lost.
func TestNamesThatAreCutStayApart(t *testing.T) {
	var b Board
	long := strings.Repeat("x", longestLabel)
	names := []string{"a\xff", "a\xfe", "a\uFFFD", long, long + "1", long + "2", long[1:] + "\u00e9"}
	for _, name := range names {
		l := b.Add(name, bucket(t, outbound.PerSecond(1)))
		p, _ := l.Acquire(bg, outbound.Cost{1})
		for _, policy := range names {
			p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: policy, Limit: 5, Remaining: 3, Reset: time.Hour}})
		}
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(metricsOf(&b)) {
		series, _, ok := strings.Cut(line, "} ")
		if ok && seen[series] {
			t.Fatalf("twice: %s", series)
		}
		seen[series] = true
		if len(line) > 1000 || !utf8.ValidString(line) {
			t.Fatalf("%q", line)
		}
	}
	if text := metricsOf(&b); !strings.Contains(text, `limiter="`+long+`"`) || !strings.Contains(text, "limiter=\"a\uFFFD\"") {
		t.Error("a name that needs no mending was mended")
	}
}
