package transport

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestAllSpellingsOfAHostAreOne(t *testing.T) {
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
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostKey(u); got != c.want {
			t.Errorf("%s: %q, want %q", c.url, got, c.want)
		}
	}
}

func TestHostsThatMakeNoSenseHaveAKeyToo(t *testing.T) {
	for _, u := range []*url.URL{nil, {}, {Host: ":"}, {Host: "."}, {Host: "a b\r\nHost: c"}, {Host: "ü\r\nx"}, {Host: "[::1"}, {Host: "x:70000"}, {Host: "\xff"}} {
		hostKey(u) // it must not panic
	}
	if got := hostKey(&url.URL{Scheme: "http", Host: "x:70000"}); got != "x:70000" {
		t.Errorf("a port beyond all ports: %q", got)
	}
}

func TestByHostReadsTheURLAndNotTheHostHeader(t *testing.T) {
	r := new(recorder)
	asked := ""
	byHost := ByHost(func(host string) outbound.Limiter { asked = host; return r })
	req := newRequest(t, nil)
	req.Host = "other.example.com"
	req.Header.Set("Host", "other.example.com")
	if got := byHost(req); got != outbound.Limiter(r) || asked != "api.example.com" {
		t.Errorf("limiter %v for %q", got, asked)
	}
}

func keysOf(header string, requests ...*http.Request) []string {
	var keys []string
	byHeader := ByHeader(header, func(key string) outbound.Limiter { keys = append(keys, key); return nil })
	for _, req := range requests {
		byHeader(req)
	}
	return keys
}

func with(t *testing.T, rawURL string, values ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, rawURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		req.Header.Add("Authorization", v)
	}
	return req
}

func TestByHeaderTellsTokensApartAndDoesNotRevealThem(t *testing.T) {
	const host = "https://api.example.com/"
	same := keysOf("authorization", with(t, host, "Bearer canary"), with(t, "https://API.example.com.:443/x", "Bearer canary"))
	if same[0] != same[1] {
		t.Errorf("one token has two keys: %q", same)
	}
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(same[0]) {
		t.Errorf("key %q is not 32 hexadecimal digits", same[0])
	}
	other := with(t, host)
	other.Header.Set("X-Api-Key", "Bearer canary")
	keys := append(keysOf("Authorization",
		with(t, host, "Bearer canary"),
		with(t, host, "Bearer canary2"),
		with(t, host, "bearer canary"),
		with(t, host, "Bearer canary", ""),
		with(t, host, "Bearer ", "canary"),
		with(t, host, "Bearer", " canary"),
		with(t, "https://api.example.com:8443/", "Bearer canary"),
		with(t, "https://evil.example.com/", "Bearer canary"),
	), keysOf("X-Api-Key", other)...)
	seen := map[string]int{}
	for i, key := range keys {
		if j, ok := seen[key]; ok || key == "" {
			t.Errorf("requests %d and %d have one key, %q", j, i, key)
		}
		seen[key] = i
	}
}

func TestByHeaderWithoutTheHeaderHasTheEmptyKey(t *testing.T) {
	bare := with(t, "https://api.example.com/")
	bare.Header = nil
	for i, key := range keysOf("Authorization", bare, with(t, "https://api.example.com/"), with(t, "https://other.example.com/", "")) {
		if key != "" {
			t.Errorf("request %d has the key %q", i, key)
		}
	}
}

func TestByWithoutAFunctionRefusesAll(t *testing.T) {
	for name, f := range map[string]func(*http.Request) outbound.Limiter{"ByHost": ByHost(nil), "ByHeader": ByHeader("X", nil)} {
		rt := &Transport{Base: answer(200, nil), For: f}
		if _, err := rt.RoundTrip(newRequest(t, nil)); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func FuzzHostsAndRoutes(f *testing.F) {
	byRoute, err := ByRoute(map[string]outbound.Limiter{"GET api.example.com/search/": nil, "/{a}/{b...}": outbound.Unlimited{}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"https://api.example.com:443/search/x", "http://[::1%25eth0]:080/a//b/..", "https://bücher.example/%2e%2e/", "mailto:a@b", "//x"} {
		f.Add(s, "GET", "")
	}
	f.Fuzz(func(t *testing.T, rawURL, method, opaque string) {
		u, err := url.Parse(rawURL)
		if err != nil {
			return
		}
		key := hostKey(u)
		if again := hostKey(&url.URL{Scheme: u.Scheme, Host: strings.ToUpper(u.Host)}); isASCII(u.Host) && again != key {
			t.Errorf("%q has the keys %q and %q", u.Host, key, again)
		}
		u.Opaque = opaque
		byRoute(&http.Request{Method: method, URL: u}) // it must not panic
	})
}

func isASCII(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0 }
