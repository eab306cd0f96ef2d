package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound"
)

// Another program fills the bucket. At most one call of each worker is refused, and all workers
// wait for 2 s.
func TestProgram_RefusalHoldsAllWorkers(t *testing.T) {
	exampletest.InVirtualTime(t, func(t *testing.T) {
		var out bytes.Buffer
		api := newAPI()
		task := demo(api)
		go others(t.Context(), api)
		if err := task.run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "asks to wait 2s") {
			t.Errorf("%v\n%s", err, &out)
		}
		if task.done.Load() != task.calls || task.refused.Load() == 0 || task.refused.Load() > 4 {
			t.Errorf("%d calls made, %d refused; want %d, and one for each worker at most", task.done.Load(), task.refused.Load(), task.calls)
		}
		if took := time.Since(exampletest.Begin); took < 4*time.Second || took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// Without the other program the API refuses no call. A window and evenly spaced calls have the same
// rate, and take longer than the bucket. An interrupt ends the workers.
func TestLimit_BucketIsFasterThanAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		limit       outbound.Limit
		least, most time.Duration
	}{
		"bucket": {demo(nil).limit, 0, 4500 * time.Millisecond}, // (120 - 38)/20 s, and an answer
		"window": {outbound.Window(38, 38*time.Second/20), 5500 * time.Millisecond, time.Minute},
		"evenly": {outbound.PerSecond(20), 5500 * time.Millisecond, time.Minute},
	} {
		exampletest.InVirtualTime(t, func(t *testing.T) {
			task := demo(newAPI())
			task.limit = c.limit
			err := task.run(t.Context(), io.Discard)
			if took := time.Since(exampletest.Begin); err != nil || task.refused.Load() > 0 || took < c.least || took > c.most {
				t.Errorf("%s: %d refused in %v, %v", name, task.refused.Load(), took, err)
			}
		})
	}
	exampletest.Interrupt(t, time.Second, demo(newAPI()).run)
}

// With -real the token goes to a shop at Shopify only, and is never printed.
func TestReal_TokenGoesToTheShopOnly(t *testing.T) {
	for _, shop := range []string{"", "example.com", "evil.test/", "a.b.myshopify.com", "a@evil.test", "A b", "-a"} {
		if _, err := real(shop, "secret"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("shop %q: %v", shop, err)
		}
	}
	for _, shop := range []string{"example", "example.myshopify.com"} {
		const url = "https://example.myshopify.com/admin/api/2026-01/shop.json?fields=name"
		exampletest.KeepsSecret(t, url, "X-Shopify-Access-Token", "secret", func(ctx context.Context, api http.RoundTripper, out io.Writer) error {
			task := exampletest.Must(real(shop, "secret"))
			task.base, task.calls = api, 1
			return task.run(ctx, out)
		})
	}
}
