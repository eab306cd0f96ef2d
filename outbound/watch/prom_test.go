package watch

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// sampleLine is a line of Prometheus text.
var sampleLine = regexp.MustCompile(`^([a-z_]+)(\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)$`)

// The table in the package's documentation has each metric with its labels.
func TestMetrics_DocHasEachMetric(t *testing.T) {
	doc := must(os.ReadFile("doc.go"))
	got, want := regexp.MustCompile(`(?m)^//\t(dripfeed_\S+\{[a-z_, ]+\})`).FindAllStringSubmatch(string(doc), -1), AllMetrics()
	for i := range max(len(got), len(want)) {
		fatalIf(t, i >= min(len(got), len(want)),
			"%d metrics are documented, and there are %d", len(got), len(want))
		if name, labels := want[i].Prometheus(); got[i][1] != name+"{"+strings.Join(labels, ", ")+"}" {
			t.Errorf("documented: %s, made: %s%v", got[i][1], name, labels)
		}
	}
}

// Names that break careless texts, or that look alike when they are cut or mended, have valid series of their own: a scrape
// with one twice is lost.
func TestMetrics_HostileNames(t *testing.T) {
	var b Board
	long := strings.Repeat("x", longestLabel)
	names := append([]string{"a\xff", "a\xfe", "a\uFFFD", long, long + "1", long + "2", long[1:] + "\u00e9"}, hostileNames...)
	for _, name := range names {
		l := b.Add(name, bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.001, Name: strings.ToValidUTF8(name, "?")}))
		p := take(t, l)
		for _, policy := range names {
			report(&p, policy, 5, 3, time.Hour)
		}
		_, _ = l.Acquire(bg, outbound.Cost{1})
	}
	text := metricsOf(&b)
	seen, types := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if head, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(head, " ")
			errorIf(t, types[name], "%s has two types", name)
			types[name] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		fatalIf(t, m == nil || len(line) > 1000 || !utf8.ValidString(line), "no line of Prometheus text: %q", line)
		series, _, _ := strings.Cut(line, "} ")
		fatalIf(t, seen[series], "twice: %s", series)
		seen[series] = true
		base := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		errorIf(t, !types[base], "%s has no type", m[1])
	}
	equal(t, strings.Count(text, "dripfeed_api_remaining{"), len(names)*min(len(names), mostBudgets), "budgets")
	errorIf(t, !strings.Contains(text, `limiter="`+long+`"`) || !strings.Contains(text, "limiter=\"a\uFFFD\""),
		"a name that needs no mending was mended")
	jsonOf(t, b.Snapshot(bg, Query{}))
}

// What a scraper gets.
func TestMetrics_ScrapeIsExact(t *testing.T) {
	question(t, "Metrics are served as Prometheus text", func(t *testing.T, b *Board) {
		b.Add("api", bucket(t, outbound.PerSecond(1)))
		if w := get(b.Metrics(), "/metrics"); w.Code != 200 || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" || w.Body.String() != metricsOf(b) {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		exports(t, b, `calls_total{limiter="api",result="admitted",error_type=""} 0`)
	})
	question(t, "The histogram's buckets are cumulative, in seconds, and the last one has all calls", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 2}), queue.Config{}))
		for range 5 {
			take(t, l)
		}
		for _, line := range []string{
			`_bucket{limiter="api",le="0.001"} 1`, `_bucket{limiter="api",le="0.5"} 5`, `_bucket{limiter="api",le="3600"} 5`,
			`_bucket{limiter="api",le="+Inf"} 5`, `_sum{limiter="api"} 2`, `_count{limiter="api"} 5`,
		} {
			exports(t, b, "call_wait_time_seconds"+line)
		}
	})
	question(t, "A Keyed that drops its keys, or a hold that ends, takes nothing back from the counters", func(t *testing.T, b *Board) {
		keyed := tenants(5, outbound.PerSecond(1))
		of := AddKeyed(b, "tenants", keyed, nil)
		for i := range 100 {
			p := take(t, of(strconv.Itoa(i)))
			p.Done()
			time.Sleep(2 * time.Second)
			c := called(t, b, "tenants").Calls
			fatalIf(t, c.Admitted != uint64(i+1), "%+v after %d calls", c, i+1)
		}
		errorIf(t, keyed.Len() > 5, "no key was dropped")
		one := bucket(t, outbound.PerSecond(1))
		b.Add("one", one)
		for range 2 {
			hold(t, one, time.Minute)
			synctest.Wait()
			time.Sleep(10 * time.Second)
			_ = one.Resume(bg)
			synctest.Wait()
			time.Sleep(time.Minute)
		}
		l := called(t, b, "one")
		errorIf(t, l.HeldTime != 20*time.Second, "%+v", l)
	})
}
