package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// The file that comes with the example is right, and files that are wrong are refused.
func TestHandler_ChecksTheFile(t *testing.T) {
	text, err := os.ReadFile("limits.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handler(text); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{
		`{`,
		`{"a": {"url": "api.test", "limits": ["1 per 1s"]}}`,
		`{"a": {"url": "http://api.test", "limits": ["1 per"]}}`,
		`{"a": {"url": "http://api.test"}}`,
		`{"a": {"url": "http://api.test", "limits": ["1 per 1s"], "profile": "nobody's"}}`,
		`{"a": {"url": "http://api.test", "limits": ["1 per 1s"], "maxWait": "soon"}}`,
	} {
		if _, err := handler([]byte(wrong)); err == nil {
			t.Errorf("no error: %s", wrong)
		}
	}
}

// A request goes to the API's URL with the rest of its path. One over the limit gets a 429 with a
// Retry-After, and the API does not get it. The page and the numbers show the limiter.
func TestHandler_PacesAnotherProgram(t *testing.T) {
	var got []string
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+r.Host+r.URL.RequestURI()+" "+string(text))
	}))
	defer api.Close()
	h, err := handler(fmt.Appendf(nil, `{"a": {"url": %q, "limits": ["1 per 1h"], "maxWait": "1s"}}`, api.URL+"/v1"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(h)
	defer proxy.Close()
	for _, want := range []int{200, 429} {
		resp, err := http.Post(proxy.URL+"/a/items?n=1", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || (resp.Header.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("%s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
		}
	}
	if want := "POST " + strings.TrimPrefix(api.URL, "http://") + "/v1/items?n=1 body"; len(got) != 1 || got[0] != want {
		t.Errorf("the API has got %q, want %q", got, want)
	}
	for path, shows := range map[string]string{"/debug/dripfeed": "<html", "/metrics": `limiter="a"`} {
		resp, err := http.Get(proxy.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(text), shows) {
			t.Errorf("%s: %s\n%.300s", path, resp.Status, text)
		}
	}
}
