package transport_test

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// hostKey returns the key that ByHost asks for.
func hostKey(u *url.URL) (key string) {
	transport.ByHost(func(host string) outbound.Limiter { key = host; return nil })(&http.Request{URL: u, Host: "ignored.example.com"})
	return key
}

// All spellings of a host have one key. It is that of the URL, and not of the Host header.
func TestByHost_SpellingsOfAHostAreOne(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"https://api.example.com/x", "api.example.com"},
		{"https://API.Example.COM/x", "api.example.com"},
		{"https://api.example.com./x", "api.example.com"},
		{"https://api.example.com:443/x", "api.example.com"},
		{"https://api.example.com:/x", "api.example.com"},
		{"https://api.example.com:00443/x", "api.example.com"},
		{"HTTPS://user:secret@api.example.com:443/x", "api.example.com"},
		{"http://api.example.com:80/x", "api.example.com"},
		{"http://api.example.com:443/x", "api.example.com:443"},
		{"https://api.example.com:80/x", "api.example.com:80"},
		{"https://api.example.com.:8443/x", "api.example.com:8443"},
		{"https://127.0.0.1/", "127.0.0.1"},
		{"https://[::1]/", "::1"},
		{"https://[0:0:0:0:0:0:0:1]:443/", "::1"},
		{"https://[::1]:8443/", "[::1]:8443"},
		{"https://[::ffff:127.0.0.1]/", "127.0.0.1"},
		{"https://[FE80::1%25eth0]:8443/", "[fe80::1%eth0]:8443"},
		{"https://bücher.example/", "xn--bcher-kva.example"},
		{"https://BÜCHER.example:443/", "xn--bcher-kva.example"},
		{"https://xn--bcher-kva.example./", "xn--bcher-kva.example"},
		{"https://ａｐｉ.example.com/", "api.example.com"}, // full width
		{"https://api。example。com:8443/", "api.example.com:8443"},
	} {
		u := must(url.Parse(c.url))
		equal(t, hostKey(u), c.want, "%s", c.url)
	}
	for _, u := range []*url.URL{nil, {}, {Host: ":"}, {Host: "."}, {Host: "a b\r\nHost: c"}, {Host: "ü\r\nx"}, {Host: "[::1"}, {Host: "\xff"}} {
		hostKey(u) // it must not panic
	}
	equal(t, hostKey(&url.URL{Scheme: "http", Host: "x:70000"}), "x:70000", "a port beyond all ports")
}

// ByHeader has a key of 32 hexadecimal digits for each token and host, and the empty key without the
// header.
func TestByHeader_SeparatesTokens(t *testing.T) {
	keys := func(header string, requests ...*http.Request) (keys []string) {
		byHeader := transport.ByHeader(header, func(key string) outbound.Limiter { keys = append(keys, key); return nil })
		for _, req := range requests {
			byHeader(req)
		}
		return keys
	}
	with := func(rawURL string, values ...string) *http.Request {
		req := must(http.NewRequest(http.MethodGet, rawURL, nil))
		req.Header["Authorization"] = values
		return req
	}
	const host = "https://api.example.com/"
	same := keys("authorization", with(host, "Bearer canary"), with("https://API.example.com.:443/x", "Bearer canary"))
	errorIf(t, same[0] != same[1] || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(same[0]),
		"the keys of one token are %q, want 32 hexadecimal digits twice", same)
	other := with(host)
	other.Header.Set("X-Api-Key", "Bearer canary")
	seen := map[string]int{}
	for i, key := range append(keys("X-Api-Key", other), keys("Authorization",
		with(host, "Bearer canary"),
		with(host, "Bearer canary2"),
		with(host, "bearer canary"),
		with(host, "Bearer canary", ""),
		with(host, "Bearer ", "canary"),
		with(host, "Bearer", " canary"),
		with("https://api.example.com:8443/", "Bearer canary"),
		with("https://evil.example.com/", "Bearer canary"),
	)...) {
		j, ok := seen[key]
		errorIf(t, ok || key == "", "requests %d and %d have one key, %q", j, i, key)
		seen[key] = i
	}
	bare := with(host)
	bare.Header = nil
	for i, key := range keys("Authorization", bare, with(host), with("https://other.example.com/", "")) {
		errorIf(t, key != "", "request %d has the key %q", i, key)
	}
}

// Without a function ByHost and ByHeader refuse every request.
func TestByHost_NilFunctionRefusesAll(t *testing.T) {
	for name, f := range map[string]func(*http.Request) outbound.Limiter{"ByHost": transport.ByHost(nil), "ByHeader": transport.ByHeader("X", nil)} {
		rt := &transport.Transport{Base: answer(200, nil), For: f}
		_, err := rt.RoundTrip(newRequest(t, nil))
		errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%s: %v, want ErrInvalid", name, err)
	}
}

// Upper and lower case of a host have one key, and no URL makes ByRoute panic.
func FuzzHostsAndRoutes(f *testing.F) {
	byRoute := must(transport.ByRoute(map[string]outbound.Limiter{"GET api.example.com/search/": nil, "/{a}/{b...}": outbound.Unlimited{}}))
	for _, s := range []string{"https://api.example.com:443/search/x", "http://[::1%25eth0]:080/a//b/..", "https://bücher.example/%2e%2e/", "mailto:a@b", "//x"} {
		f.Add(s, "GET", "")
	}
	f.Fuzz(func(t *testing.T, rawURL, method, opaque string) {
		u, err := url.Parse(rawURL)
		if err != nil {
			return
		}
		ascii := strings.IndexFunc(u.Host, func(r rune) bool { return r >= 0x80 }) < 0
		key := hostKey(u)
		again := hostKey(&url.URL{Scheme: u.Scheme, Host: strings.ToUpper(u.Host)})
		errorIf(t, ascii && again != key, "%q has the keys %q and %q", u.Host, key, again)
		u.Opaque = opaque
		byRoute(&http.Request{Method: method, URL: u}) // it must not panic
	})
}
