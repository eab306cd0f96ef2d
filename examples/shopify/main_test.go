package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestRefusal_HoldsAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var out bytes.Buffer
		api := newAPI()
		task := demo(api)
		go others(t.Context(), api)
		if err := task.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		t.Logf("\n%s", &out)
		if task.done.Load() != task.calls || task.refused.Load() == 0 || task.refused.Load() > 4 {
			t.Errorf("%d calls made, %d refused; want %d, and one for each worker at most", task.done.Load(), task.refused.Load(), task.calls)
		}
		if !strings.Contains(out.String(), "asks to wait 2s") {
			t.Error("nobody has waited for 2 s")
		}
		if took := time.Since(begin); took < 4*time.Second || took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
	})
}

func TestProgram_UndisturbedHasNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		task := demo(newAPI())
		if err := task.run(t.Context(), io.Discard); err != nil || task.refused.Load() > 0 {
			t.Errorf("%d refused, %v", task.refused.Load(), err)
		}
		if took := time.Since(begin); took > 4500*time.Millisecond { // (120 - 38)/20 s, and an answer
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
	})
}

// They have the same rate, and room for as many at once.
func TestWindow_TakesLongerThanTheBucketOfTheAPI(t *testing.T) {
	took := map[string]time.Duration{}
	for name, limit := range map[string]outbound.Limit{
		"bucket": {Capacity: 38, LeakRate: 20},
		"window": outbound.Window(38, 38*time.Second/20),
		"evenly": outbound.PerSecond(20),
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			task := demo(newAPI())
			task.limit = limit
			if err := task.run(t.Context(), io.Discard); err != nil || task.refused.Load() > 0 {
				t.Errorf("%s: %d refused, %v", name, task.refused.Load(), err)
			}
			took[name] = time.Since(begin)
			time.Sleep(time.Second)
		})
	}
	if took["bucket"]+time.Second > min(took["window"], took["evenly"]) {
		t.Errorf("120 calls take %v", took)
	}
	t.Log(took)
}

func TestInterrupt_EndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := demo(newAPI()).run(ctx, io.Discard); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
		time.Sleep(time.Second)
	})
}

type seen struct{ urls, tokens []string }

func (s *seen) RoundTrip(req *http.Request) (*http.Response, error) {
	s.urls, s.tokens = append(s.urls, req.URL.String()), append(s.tokens, req.Header.Get("X-Shopify-Access-Token"))
	return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

func TestToken_GoesToTheShopOnly(t *testing.T) {
	for _, shop := range []string{"", "example.com", "evil.test/", "a.b.myshopify.com", "a@evil.test", "A b", "-a"} {
		if _, err := real(shop, "secret"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("shop %q: %v", shop, err)
		}
	}
	for _, shop := range []string{"example", "example.myshopify.com"} {
		var out bytes.Buffer
		task, err := real(shop, "secret")
		if err != nil {
			t.Fatal(err)
		}
		api := new(seen)
		task.base, task.calls = api, 1
		if err = task.run(t.Context(), &out); err == nil || strings.Contains(err.Error()+out.String(), "secret") {
			t.Errorf("%v\n%s", err, &out)
		}
		if len(api.urls) != 1 || !strings.HasPrefix(api.urls[0], "https://example.myshopify.com/") || api.tokens[0] != "secret" {
			t.Errorf("seen %v", api)
		}
	}
}
