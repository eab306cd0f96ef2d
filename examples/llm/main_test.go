package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBothModelsAreUsedToTheFullAndHardlyEverRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), newAPI(), &out); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		t.Logf("\n%s", &out)
		for _, name := range []string{"small", "large"} {
			row := regexp.MustCompile(name + ` +(\d+) +(\d+) +(\d+) +(\d+) %`).FindStringSubmatch(out.String())
			if row == nil {
				t.Fatalf("no row of %q", name)
			}
			refused, _ := strconv.Atoi(row[2])
			share, _ := strconv.Atoi(row[4])
			if refused > 2 || share < 80 || share > 100 {
				t.Errorf("%s: %d refused, %d %% of the rate", name, refused, share)
			}
		}
	})
}

func TestInterruptEndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := run(ctx, newAPI(), new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
		time.Sleep(time.Second)
	})
}

func TestUsageIsFoundAtTheEndOfAnAnswer(t *testing.T) {
	for text, want := range map[string]float64{
		`…"usage": {"prompt_tokens": 9, "total_tokens": 42}}`: 42,
		`"total_tokens":7,"x":1`:                              7,
		`"total_tokens": "many"`:                              -1,
		`"total_tokens":`:                                     -1,
		`no usage`:                                            -1,
	} {
		n, ok := usage([]byte(text))
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %v, %v", text, n, ok)
		}
	}
}

type seen struct{ urls, keys []string }

func (s *seen) RoundTrip(req *http.Request) (*http.Response, error) {
	s.urls, s.keys = append(s.urls, req.URL.String()), append(s.keys, req.Header.Get("Authorization"))
	return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

func TestTheKeyIsSentAndNeverPrinted(t *testing.T) {
	var out bytes.Buffer
	api := new(seen)
	err := list(t.Context(), api, "secret", &out)
	if err == nil || strings.Contains(err.Error()+out.String(), "secret") {
		t.Errorf("%v\n%s", err, &out)
	}
	if len(api.urls) != 1 || api.urls[0] != "https://api.openai.com/v1/models" || api.keys[0] != "Bearer secret" {
		t.Errorf("seen %v", api)
	}
}
