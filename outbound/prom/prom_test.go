package prom_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/boardtest"
	"github.com/dripfeed/dripfeed/outbound/prom"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// scraped returns the values of all series in Prometheus text, by name and labels.
func scraped(text string) map[string]string {
	all := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(dripfeed_\w+)\{(.*)\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		labels := regexp.MustCompile(`\w+="(?:[^"\\]|\\.)*"`).FindAllString(m[2], -1)
		slices.Sort(labels)
		all[m[1]+fmt.Sprint(labels)] = m[3]
	}
	return all
}

// A registry serves all metrics of a board, with the values of its own text.
func TestCollector_ServesWhatTheBoardServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b watch.Board
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(prom.NewCollector(&b))
		page := func(h http.Handler) string {
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil)); w.Code != 200 {
				t.Fatal(w.Body)
			}
			return w.Body.String()
		}
		registry := promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
		if text := page(registry); text != "" {
			t.Errorf("an empty board has %s", text)
		}
		boardtest.Fill(t, &b)
		text, own := page(registry), page(b.Metrics())
		for _, m := range watch.AllMetrics() {
			name, _ := m.Prometheus()
			if head := "# HELP " + name + " " + m.Help + "\n# TYPE " + name + " " + m.Kind + "\n"; !strings.Contains(text, head) || !strings.Contains(own, head) {
				t.Errorf("no %s is served", name)
			}
		}
		if got, want := scraped(text), scraped(own); !maps.Equal(got, want) || len(want) < 80 {
			t.Errorf("%d series\n%v\nand in the board's text\n%v", len(got), got, want)
		}
		if strings.Contains(text, boardtest.Secret) {
			t.Error("a metric has a key")
		}
	})
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
