package transport_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// routes returns a function that returns the pattern ByRoute chooses for a request, or "".
func routes(t *testing.T, patterns ...string) func(*http.Request) string {
	t.Helper()
	m := map[string]outbound.Limiter{}
	for _, p := range patterns {
		m[p] = refusing(errors.New(p))
	}
	byRoute := must(transport.ByRoute(m))
	return func(req *http.Request) string {
		l := byRoute(req)
		if l == nil {
			return ""
		}
		_, err := l.Acquire(t.Context(), outbound.Cost{1})
		return err.Error()
	}
}

// The most specific pattern wins, by the path as a server would resolve it. The URL is not changed.
func TestByRoute_ChoosesMostSpecificPattern(t *testing.T) {
	const (
		search  = "GET api.example.com/search/"
		posts   = "api.example.com/users/{id}/posts"
		any     = "api.example.com/"
		export  = "POST /export"
		exact   = "API.Example.com./exact/{$}"
		six     = "[2001:DB8::1]/"
		umlaut  = "bücher.example/"
		connect = "CONNECT tunnel.example.com/"
	)
	const tree, anyTree = "CONNECT a.example.com/tree/", "/tree/"
	route := routes(t, search, posts, any, export, exact, six, umlaut, connect, tree, anyTree)
	for asked, want := range map[string]string{
		"GET https://api.example.com/search/":        search,
		"GET https://api.example.com/search/a/b?q=x": search,
		"HEAD https://api.example.com/search/a":      search,
		" https://api.example.com/search/a":          search, // no method: GET
		"POST https://api.example.com/search/a":      any,
		"PUT https://api.example.com/users/7/posts":  posts,
		"GET https://api.example.com/users/7/posts/": any,
		"GET https://api.example.com":                any,
		"GET https://api.example.com/exact/":         exact,
		"GET https://api.example.com/exact/more":     any,
		"POST https://other.example.com/export":      export,
		"POST https://api.example.com/export":        any, // the host is more specific
		"GET https://other.example.com/export":       "",
		"GET https://other.example.com/":             "",
		"GET https://api.example.com.evil.com/":      "",
		// Hosts.
		"GET https://API.example.com.:8443/search/x":   search,
		"GET https://user:pw@api.example.com/search/x": search,
		"GET https://[2001:db8:0::1]:8443/x":           six,
		"GET https://xn--bcher-kva.example/x":          umlaut,
		// Paths, as a server would resolve them.
		"GET https://api.example.com/search":            search,
		"GET https://api.example.com//search/x":         search,
		"GET https://api.example.com/x/../search/y":     search,
		"GET https://api.example.com/./search//y":       search,
		"GET https://api.example.com/x/%2e%2E/search/":  search,
		"GET https://api.example.com/%73earch/x":        search,
		"GET https://api.example.com/search%2Fx":        any, // an escaped slash does not end a segment
		"GET https://api.example.com/users/a%2Fb/posts": posts,
		"GET https://api.example.com/search/../x":       any,
		"GET https://api.example.com/../../search/x":    search,
		// CONNECT.
		"CONNECT //tunnel.example.com:443":  connect,
		"CONNECT //tunnel.example.com/a//b": connect,
		"GET https://tunnel.example.com/":   "",
		"CONNECT //api.example.com/search":  any,
		"CONNECT //a.example.com/tree":      tree,
		"CONNECT //b.example.com/tree":      anyTree,
	} {
		method, rawURL, _ := strings.Cut(asked, " ")
		u := must(url.Parse(rawURL))
		req := &http.Request{Method: method, URL: u}
		before := *req.URL
		equal(t, route(req), want, "%s", asked)
		errorIf(t, *req.URL != before, "%s: the URL was changed", asked)
	}
}

// RawPath is empty for ordinary paths, Opaque holds the path where a program has set it, and
// the two may differ.
func TestByRoute_MatchesThePathThatIsSent(t *testing.T) {
	const search, any = "api.example.com/search/", "/"
	route := routes(t, search, any)
	for _, c := range []struct {
		name string
		url  *url.URL
		want string
	}{
		{"Path alone", &url.URL{Host: "api.example.com", Path: "/search/x"}, search},
		{"RawPath that does not fit is not sent", &url.URL{Host: "api.example.com", Path: "/search/x", RawPath: "/other"}, search},
		{"Opaque with a host", &url.URL{Host: "api.example.com", Opaque: "//api.example.com/search/%41?q=/"}, search},
		{"Opaque without a host", &url.URL{Host: "api.example.com", Opaque: "/search/x"}, search},
		{"Opaque wins", &url.URL{Host: "api.example.com", Path: "/search/x", Opaque: "/other"}, any},
		{"Opaque with a bad escape", &url.URL{Host: "api.example.com", Opaque: "/search/%zz"}, search},
		{"Opaque with a host only", &url.URL{Host: "api.example.com", Opaque: "//api.example.com"}, any},
		{"nil", nil, ""},
	} {
		equal(t, route(&http.Request{URL: c.url, Host: "ignored.example.com"}), c.want, "%s", c.name)
	}
}

// For a nil limiter, and without a route, the Transport's Limiter admits.
func TestByRoute_NilLimiterIsTheTransports(t *testing.T) {
	for _, m := range []map[string]outbound.Limiter{{"/": new(recorder), "api.example.com/": nil}, nil} {
		own := new(recorder)
		byRoute := must(transport.ByRoute(m))
		trip(t, &transport.Transport{Base: answer(200, nil), Limiter: own, For: byRoute})
		equal(t, own.take(), "acquire 1, done", "%v: Limiter recorded", m)
	}
}

// A pattern that is not valid or conflicts with another is an error that names it.
func TestByRoute_InvalidPatternIsAnError(t *testing.T) {
	for name, patterns := range map[string][]string{
		"empty":                {""},
		"no path":              {"api.example.com"},
		"method only":          {"GET "},
		"bad method":           {"G@T /x"},
		"bad wildcard":         {"/{"},
		"wildcard in the host": {"{tenant}.example.com/"},
		"port":                 {"api.example.com:8443/"},
		"empty port":           {"api.example.com:/"},
		"odd port":             {"api.example.com:http/"},
		"bare IPv6":            {"2001:db8::1/"},
		"conflict":             {"/a/{x}", "/{x}/b"},
		"one route twice":      {"api.example.com/", "API.example.com./"},
	} {
		m := map[string]outbound.Limiter{}
		for _, p := range patterns {
			m[p] = nil
		}
		f, err := transport.ByRoute(m)
		if !errors.Is(err, outbound.ErrInvalid) || f != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "transport: route ") || strings.ContainsAny(text, "\n") || strings.Contains(text, ".go:") {
			t.Errorf("%s: error %q", name, text)
		}
	}
}
