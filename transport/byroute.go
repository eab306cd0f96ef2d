package transport

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
)

// ByRoute returns a function for the field For of a [Transport], which chooses limiters by
// method, host and path. The keys are patterns as of [http.ServeMux], and the most specific
// pattern that matches wins:
//
//	"GET api.example.com/search/"       // a path and all below it; GET has HEAD in it
//	"api.example.com/users/{id}/posts"  // any method
//	"/"                                 // any host
//
// ByRoute compares hosts as [ByHost] does, but without a port. It matches a path as a server
// is likely to understand it: it unescapes the path and resolves ".", ".." and doubled
// slashes, and "/search" belongs to "/search/" unless it has a pattern of its own. The
// request is sent as it is. Several patterns may have the same limiter. For a nil limiter,
// and for a request that no pattern matches, the Transport's Limiter admits.
//
// For a pattern that is not valid, has a port or conflicts with another, ByRoute returns an
// error that is [outbound.ErrInvalid].
func ByRoute(routes map[string]outbound.Limiter) (func(*http.Request) outbound.Limiter, error) {
	mux := http.NewServeMux()
	limiters := make(map[string]outbound.Limiter, len(routes))
	for _, given := range slices.Sorted(maps.Keys(routes)) {
		pattern, err := normalRoute(given)
		if err == nil {
			err = register(mux, pattern)
		}
		if err != nil {
			return nil, fmt.Errorf("transport: route %q: %w: %w", given, outbound.ErrInvalid, err)
		}
		limiters[pattern] = routes[given]
	}
	return func(req *http.Request) outbound.Limiter {
		if req.URL == nil {
			return nil
		}
		_, pattern := mux.Handler(&http.Request{
			Method: normalMethod(req.Method),
			Host:   hostName(req.URL.Hostname()),
			URL:    sentPath(req.URL),
		})
		return limiters[pattern]
	}, nil
}

// normalMethod returns the method that the mux is to see. A request without one is a GET. For
// CONNECT the mux does not resolve the path, so CONNECT gets another name.
func normalMethod(method string) string {
	switch method {
	case "":
		return http.MethodGet
	case http.MethodConnect:
		return "CONNECT-"
	}
	return method
}

// normalRoute writes the method and the host in a pattern as requests have them.
func normalRoute(pattern string) (string, error) {
	rest := pattern
	prefix := ""
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		rest = strings.TrimLeft(pattern[i:], " \t")
		if i > 0 {
			prefix = normalMethod(pattern[:i])
		}
		prefix += " "
	}
	slash := strings.IndexByte(rest, '/')
	if slash <= 0 { // a host or path is missing: register reports it
		return prefix + rest, nil
	}
	u := url.URL{Host: rest[:slash]}
	name := hostName(u.Hostname())
	if _, err := netip.ParseAddr(name); u.Port() != "" || err != nil && strings.Contains(u.Host, ":") {
		return "", fmt.Errorf("a route has no port, and an IPv6 address in brackets: %q", u.Host)
	}
	return prefix + name + rest[slash:], nil
}

// registered matches the line of code in a mux's panic. It is always the line in register.
var registered = regexp.MustCompile(` \(registered at [^)]*\)`)

// register adds a pattern, and returns an error where the mux panics.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			text := registered.ReplaceAllString(fmt.Sprint(r), "")
			err = errors.New(strings.ReplaceAll(text, "\n", " "))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// dots undoes the escape of dots, which would hide ".." from the mux.
var dots = strings.NewReplacer("%2e", ".", "%2E", ".")

// sentPath returns a URL with the path that net/http sends. A program that controls the escapes
// itself puts the path into Opaque. RawPath alone lacks it: it has unusual escapes only.
func sentPath(u *url.URL) *url.URL {
	path := u.EscapedPath()
	if u.Opaque != "" {
		path, _, _ = strings.Cut(u.Opaque, "?")
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			_, path, _ = strings.Cut(rest, "/")
			path = "/" + path
		}
	}
	path = dots.Replace(path)
	plain, err := url.PathUnescape(path)
	if err != nil {
		plain = path
	}
	return &url.URL{Path: plain, RawPath: path}
}
