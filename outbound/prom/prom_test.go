package prom_test

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/prom"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

// counting is a store that has counted so much.
type counting struct{ store.Store }

func (counting) Stats() store.StoreStats {
	return store.StoreStats{Answered: 9, Repeats: 2, Failed: 1, Requests: store.Times{Count: 7, Time: 3 * time.Second, Within: [len(store.TimeBounds)]uint64{0: 2, 12: 4}}}
}

// busy adds limiters to a board, so that each metric has a sample.
func busy(t *testing.T, b *watch.Board) {
	t.Helper()
	hostile := "a \"name\"\\ with \xff\n" + strings.Repeat("x", 300)
	l := b.Add(hostile, queue.New(outbound.Must(outbound.NewBucket("key", outbound.PerHour(1), outbound.InFlight(5))), queue.Config{MaxWait: 1}))
	for range 3 {
		if p, err := l.Acquire(t.Context(), outbound.Cost{1}); err == nil {
			p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Hour, Reason: "rate"})
			for _, policy := range []string{"core", hostile} {
				p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: policy, Limit: 100, Remaining: 40, Reset: time.Hour}})
			}
			p.Done()
		}
	}
	of := watch.AddKeyed(b, "tenants", &outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) {
		return outbound.NewBucket("secret", outbound.PerSecond(1))
	}}, nil)
	for i := range 5 {
		if p, err := of(i).Acquire(t.Context(), outbound.Cost{1}); err == nil {
			p.Done()
		}
	}
	if err := b.AddStore("redis", &fallback.Store{Store: counting{store.NewMemory()}}); err != nil {
		t.Fatal(err)
	}
}

var series = regexp.MustCompile(`(?m)^(dripfeed_\w+)\{(.*)\} (\S+)$`)

// scraped returns the values of all series in Prometheus text, by name and labels.
func scraped(text string) map[string]string {
	all := make(map[string]string)
	for _, m := range series.FindAllStringSubmatch(text, -1) {
		labels := regexp.MustCompile(`\w+="(?:[^"\\]|\\.)*"`).FindAllString(m[2], -1)
		slices.Sort(labels)
		all[m[1]+fmt.Sprint(labels)] = m[3]
	}
	return all
}

// A registry serves all metrics of a board, with the values of its own text.
func TestCollector_ServesWhatTheBoardServes(t *testing.T) {
	var b watch.Board
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prom.NewCollector(&b))
	page := func() string {
		w := httptest.NewRecorder()
		promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 {
			t.Fatal(w.Body)
		}
		return w.Body.String()
	}
	if text := page(); text != "" {
		t.Errorf("an empty board has %s", text)
	}
	busy(t, &b)
	text, w := page(), httptest.NewRecorder()
	b.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, m := range watch.AllMetrics() {
		name, _ := m.Prometheus()
		if head := "# HELP " + name + " " + m.Help + "\n# TYPE " + name + " " + m.Kind + "\n"; !strings.Contains(text, head) || !strings.Contains(w.Body.String(), head) {
			t.Errorf("no %s is served", name)
		}
	}
	got, want := scraped(text), scraped(w.Body.String())
	for k, v := range want {
		if got[k] != v && !strings.Contains(k, "remaining_seconds") && !strings.Contains(k, "reset_seconds") && !strings.Contains(k, "time_seconds") && !strings.Contains(k, "limit_level") {
			t.Errorf("%s is %q, and in the board's text %q", k, got[k], v)
		}
	}
	if names, all := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(names, all) || len(all) < 80 {
		t.Errorf("%d series, and %d in the board's text", len(names), len(all))
	}
	if strings.Contains(text, "secret") {
		t.Error("a metric has a key")
	}
}

func ExampleNewCollector() {
	var board watch.Board
	registry := prometheus.NewRegistry() // prometheus.DefaultRegisterer in most programs
	registry.MustRegister(prom.NewCollector(&board))

	bucket := outbound.Must(outbound.NewBucket("weather", outbound.Window(1, time.Hour)))
	limiter := board.Add("weather", bucket) // use the result
	for range 3 {
		if permit, err := limiter.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			permit.Done()
		}
	}
	families, err := registry.Gather() // promhttp.HandlerFor serves it
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "dripfeed_calls_total" {
				fmt.Println(m.GetLabel()[2].GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	// Unordered output:
	// admitted 1
	// cancelled 0
	// failed 0
	// refused 2
}
