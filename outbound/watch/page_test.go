package watch

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// get asks a handler for a page of http://localhost:8080.
func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost:8080"+target, nil))
	return w
}

// viewOf is the data that a handler has for a page.
func viewOf(t *testing.T, h http.Handler, target string) (v view) {
	t.Helper()
	w := get(h, target)
	fatalIf(t, w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json",
		"%s: %d %s: %s", target, w.Code, w.Header().Get("Content-Type"), w.Body)
	// Explanations are written only.
	text := regexp.MustCompile(`"Explain":\{`).ReplaceAll(w.Body.Bytes(), []byte(`"Explained":{`))
	err := json.Unmarshal(text, &v)
	fatalIf(t, err != nil, "%v: %v", target, err)
	return v
}

// Trap 4: other packages that serve pages of this kind open them to whoever reaches the program's default mux.
func TestPage_ImportRegistersNothing(t *testing.T) {
	for _, path := range []string{"/", "/debug/dripfeed", "/debug/vars", "/debug/pprof/", "/metrics"} {
		_, pattern := http.DefaultServeMux.Handler(httptest.NewRequest(http.MethodGet, path, nil))
		errorIf(t, pattern != "", "%s is served: %s", path, pattern)
	}
}

// Trap 5: one address, wherever it is, without a redirect. In a browser TestPage_InChromium sees what it asks for.
func TestPage_WorksWhereverItIsMounted(t *testing.T) {
	var b Board
	b.Add("github", outbound.Must(outbound.NewBucket("k", outbound.PerSecond(1))))
	mux := http.NewServeMux()
	mux.Handle("/x", &b)
	mux.Handle("/y/", &b)
	mux.Handle("/z/", http.StripPrefix("/z", &b))
	mux.Handle("/w/", http.StripPrefix("/w/", &b)) // which leaves an empty path
	for _, path := range []string{"/x", "/y/", "/y/deeper", "/z/", "/w/"} {
		if w := get(mux, path+"?theme=none"); w.Code != http.StatusOK || w.Body.String() != page || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		if v := viewOf(t, mux, path+"?json"); len(v.Limiters) != 1 || v.Limiters[0].Name != "github" || v.Limiters[0].ID != "label=&name=github" {
			t.Errorf("%s: %+v", path, v.Limiters)
		}
	}
	for _, address := range regexp.MustCompile(`\b(?:src|href|action|url)\s*[=(]\s*["']?([^"')\s>]+)|https?://[^'"\s]+`).FindAllStringSubmatch(page, -1) {
		errorIf(t, !strings.HasPrefix(address[1], "data:") && !strings.HasPrefix(address[0], "http://www.w3.org/2000/svg"),
			"the page names another address: %v", address[0])
	}
}

// Other methods are refused, and HEAD asks no limiter.
func TestPage_OnlyItsMethodsAreServed(t *testing.T) {
	f := &fake{}
	for _, method := range []string{http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch, "BREW"} {
		for _, target := range []string{"/", "/?json"} {
			w := httptest.NewRecorder()
			allowed(f).ServeHTTP(w, httptest.NewRequest(method, target, nil))
			code, allow := http.StatusMethodNotAllowed, "GET, HEAD, POST"
			if method == http.MethodHead {
				code, allow = http.StatusOK, ""
			}
			errorIf(t, w.Code != code || w.Header().Get("Allow") != allow,
				"%s %s: %d, Allow: %q", method, target, w.Code, w.Header().Get("Allow"))
		}
	}
	errorIf(t, len(f.asked) != 0, "%d looks at the limiters", len(f.asked))
}

// Whatever the answer is, no browser keeps it, frames it, or runs anything in it that is not in page.html.
func TestPage_EveryAnswerIsLockedDown(t *testing.T) {
	s := allowed(&fake{})
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRequest(http.MethodGet, "/?json", nil),
		httptest.NewRequest(http.MethodPost, "http://localhost/", strings.NewReader("do=<script>")), httptest.NewRequest(http.MethodPost, "http://example.com/", nil),
		httptest.NewRequest(http.MethodPut, "/", nil),
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		h := w.Header()
		errorIf(t, h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" || h.Get("Referrer-Policy") != "no-referrer",
			"%s %s: %v", r.Method, r.URL, h)
		errorIf(t, w.Code >= 400 && h.Get("Content-Type") != "text/plain; charset=utf-8",
			"%s %s: %d as %s", r.Method, r.URL, w.Code, h.Get("Content-Type"))
		policy := h.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "connect-src 'self'", "script-src 'sha256-", "style-src 'sha256-"} {
			errorIf(t, !strings.Contains(policy, part),
				"%s %s: the policy lacks %s: %s", r.Method, r.URL, part, policy)
		}
		errorIf(t, strings.Contains(policy, "unsafe") || strings.Contains(policy, "*"),
			"%s %s: %s", r.Method, r.URL, policy)
	}
	for _, element := range []string{"<style>", "<script>"} {
		errorIf(t, strings.Count(page, element) != 1,
			"the policy names one %s, and the page has %d", element, strings.Count(page, element))
	}
	for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick="} {
		errorIf(t, strings.Contains(page, sink), "the page has %q", sink)
	}
}

// Trap 6: names are bytes that anybody may have chosen. The ID of each finds its limiter again.
func TestPage_HostileNames(t *testing.T) {
	var all Snapshot
	f := &fake{show: func(Query) Snapshot { return all }, buckets: map[[2]string]*outbound.Bucket{}}
	for _, name := range hostileNames {
		f.buckets[[2]string{name, name}] = heldBucket(t)
		all.Limiters = append(all.Limiters, hostileRow(name))
		all.Stores = append(all.Stores, Store{Name: name, Err: name})
		all.Events = append(all.Events, Event{Name: name, Kind: name, Words: name})
	}
	var got Action
	s := &server{source: f, allow: func(_ *http.Request, a Action) error { got = a; return nil }}
	body := get(s, "/?json").Body.Bytes()
	errorIf(t, bytes.ContainsAny(body, "<>\x00\u2028"), "the JSON has markup that is not escaped")
	v := viewOf(t, s, "/?json")
	fatalIf(t, len(v.Limiters) != len(hostileNames), "%d limiters of %d", len(v.Limiters), len(hostileNames))
	for i, name := range hostileNames {
		want := strings.ToValidUTF8(name, "\ufffd")
		errorIf(t, len(v.Limiters[i].Name) < len(want), "%q is %q", name, v.Limiters[i].Name)
		if w := post(s, v.Limiters[i].ID+"&do=resume"); w.Code != http.StatusNoContent || got != (Action{Name: name, Label: name, Do: "resume"}) {
			t.Errorf("%.40q: %d %s; Allow is asked for %.80q", name, w.Code, w.Body, got)
		}
		errorIf(t, heldFor(t, f.buckets[[2]string{name, name}]) != 0, "%.40q is still held", name)
	}
}

// The address of a page is its query.
func TestPage_QueryIsTheAddress(t *testing.T) {
	f := &fake{}
	s := &server{source: f}
	for target, want := range map[string]Query{
		"/?json":                              {},
		"/?json=1&q=acme&rows=200":            {Search: "acme", Rows: 200},
		"/?q=%ff%3Cimg&json&rows=ten":         {Search: "\xff<img"},
		"/?json&rows=-1":                      {Rows: -1},
		"/?json&rows=99999999999999999999999": {Rows: math.MaxInt}, // a Board shows a thousand at most
	} {
		f.asked = nil
		viewOf(t, s, target)
		errorIf(t, len(f.asked) != 1 || f.asked[0] != want, "%s asks for %+v, want %+v", target, f.asked, want)
	}
}

// Trap 8, the first half: a request that may not act learns why. In a browser checkReadOnly sees that then there is no
// button.
func TestPage_ReadOnlyHasAReason(t *testing.T) {
	f := &fake{show: func(Query) Snapshot { return office(time.Now()) }}
	for _, c := range []struct {
		s    *server
		host string
		why  string
	}{
		{&server{source: f}, "localhost", "Board.Allow"},
		{allowed(f), "dash.example.com", "Board.Hosts"},
		{&server{source: f, allow: anybody, hosts: []string{"dash.example.com"}}, "dash.example.com", ""},
		{allowed(f), "127.0.0.1:6060", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+c.host+"/?json", nil)
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, r)
		var v struct{ ReadOnly string }
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || !strings.Contains(v.ReadOnly, c.why) || (c.why == "") != (v.ReadOnly == "") {
			t.Errorf("%s: %q %v", c.host, v.ReadOnly, err)
		}
	}
}

// A Board that shows what JSON cannot say answers with an error, and not with half of it.
func TestPage_InvalidJSONIsAnError(t *testing.T) {
	nan := 0.0
	f := &fake{show: func(Query) Snapshot { return Snapshot{Limiters: []Limiter{{Name: "a", Speed: nan / nan}}} }}
	w := get(&server{source: f}, "/?json")
	errorIf(t, w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "{"), "%v %v", w.Code, w.Body)
}

// What a page costs whoever loads it.
func TestPage_IsSmall(t *testing.T) {
	errorIf(t, len(page) > 34_000, "page.html has %d bytes", len(page))
	errorIf(t, !strings.HasPrefix(page, "<!doctype html>"), "page.html is no plain HTML")
}
