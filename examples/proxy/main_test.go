package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The file that comes with the example is right, and files that are wrong are refused.
func TestHandler_ChecksTheFile(t *testing.T) {
	text := exampletest.Must(os.ReadFile("limits.json"))
	exampletest.Must(handler(text))
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
	h := exampletest.Must(handler(fmt.Appendf(nil, `{"a": {"url": %q, "limits": ["1 per 1h"], "maxWait": "1s"}}`, api.URL+"/v1")))
	for _, c := range []struct {
		method, path string
		status       int
		shows        string
	}{
		{"POST", "/a/items?n=1", 200, ""},
		{"POST", "/a/items?n=1", 429, ""},
		{"GET", "/debug/dripfeed", 200, "<html"},
		{"GET", "/metrics", 200, `limiter="a"`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader("body")))
		if w.Code != c.status || (w.Header().Get("Retry-After") != "") != (c.status == 429) || !strings.Contains(w.Body.String(), c.shows) {
			t.Errorf("%s: status %d, Retry-After %q\n%.300s", c.path, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
	}
	if want := "POST " + strings.TrimPrefix(api.URL, "http://") + "/v1/items?n=1 body"; len(got) != 1 || got[0] != want {
		t.Errorf("the API has received %q, want %q", got, want)
	}
}
