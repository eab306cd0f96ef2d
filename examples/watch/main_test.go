package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// The alerts and the dashboard use series that a board serves.
func TestAlerts_UseNamesThatExist(t *testing.T) {
	served := make(map[string]bool)
	for _, m := range watch.AllMetrics() {
		name, _ := m.Prometheus()
		if served[name] = true; m.Kind == watch.Histogram {
			served[name+"_bucket"], served[name+"_sum"], served[name+"_count"] = true, true, true
		}
	}
	for _, file := range []string{"alerts.yml", "dashboard.json"} {
		text := exampletest.Must(os.ReadFile(file))
		used := regexp.MustCompile(`\bdripfeed_[a-z_]+`).FindAllString(string(text), -1)
		if len(used) < 8 {
			t.Errorf("%s uses %d names", file, len(used))
		}
		for _, name := range used {
			if !served[name] {
				t.Errorf("%s uses %s, which no board serves", file, name)
			}
		}
		if file == "dashboard.json" && !json.Valid(text) {
			t.Error("the dashboard is no JSON")
		}
	}
}

// The program prints the URL of its page, and serves it until an interrupt.
func TestProgram_ServesItsPage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, w, "127.0.0.1:0")
		_ = w.Close()
	}()
	lines := bufio.NewScanner(r)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "http://") {
	}
	url := lines.Text()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	resp := exampletest.Must(http.Get(url))
	page, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "dripfeed") {
		t.Errorf("%s: %d, %v\n%s", url, resp.StatusCode, err, page)
	}
	cancel()
	exampletest.NoError(t, <-ended)
}
