package transport

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// hostKey returns the name that all spellings of a URL's host share.
func hostKey(u *url.URL) string {
	if u == nil {
		return ""
	}
	host, port := hostName(u.Hostname()), u.Port()
	if strings.HasPrefix(port, "0") { // 0443 dials 443
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			port = strconv.FormatUint(n, 10)
		}
	}
	switch scheme := strings.ToLower(u.Scheme); {
	case port == "",
		port == "80" && scheme == "http",
		port == "443" && scheme == "https":
		return host
	}
	return net.JoinHostPort(host, port)
}

// hostName is hostKey for a name without port and brackets.
func hostName(host string) string {
	for i := range len(host) {
		if host[i] >= 0x80 {
			host = toASCII(host)
			break
		}
	}
	host = strings.TrimRight(strings.ToLower(host), ".")
	if strings.Contains(host, ":") { // IPv6 has many spellings; of IPv4 only one dials
		if addr, err := netip.ParseAddr(host); err == nil {
			return addr.Unmap().String()
		}
	}
	return host
}

// toASCII returns the ASCII form of an international name, with other letters and dots in
// their usual form, or the name itself if it has no such form. The rules are those by which
// net/http dials. net/http shows its result only to a dialer.
func toASCII(host string) string {
	name := host
	dialer := &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
		if dialed, _, err := net.SplitHostPort(addr); err == nil {
			name = dialed
		}
		return nil, net.ErrClosed
	}}
	req := http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: host}, Header: http.Header{}}
	_, _ = dialer.RoundTrip(&req) // never a response
	return name
}
