package transport

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
)

// ByHost returns a function for the field For of a [Transport]. It gives each host the
// limiter that the function limiter makes of the host's name, such as the method For of an
// [outbound.Keyed]:
//
//	hosts := &outbound.Keyed[string]{New: …}
//	client := &http.Client{Transport: &transport.Transport{For: transport.ByHost(hosts.For)}}
//
// A Keyed has an upper bound. A set without one grows with every host that the program calls.
//
// One host on hold can take all workers of a small pool, because each waits for it. Then give the
// hosts' queues a MaxWait of about 300 ms, and call a refused host again later.
//
// The name is the host of the URL, which net/http connects to, rather than the Host header. It is
// in lower case and ASCII ("xn--bcher-kva.example"), without a final dot and without the scheme's
// usual port. An IPv6 address is in its short form, and in brackets before a port. All spellings of
// one host have one name. Each hop of a redirect is a request to its own host.
//
// If limiter is nil, all requests fail with [outbound.ErrInvalid].
func ByHost(limiter func(host string) outbound.Limiter) func(*http.Request) outbound.Limiter {
	return by("ByHost", limiter, func(req *http.Request) string { return hostKey(req.URL) })
}

// ByHeader returns a function for the field For of a [Transport]. It gives each value of a header,
// such as Authorization, the limiter that the function limiter makes of a key. The key is 32
// hexadecimal digits of the header's name, its value and the host of [ByHost], which do not reveal
// a token. (It is half a SHA-256 without a secret: an attacker who can list all possible values can
// find the one that fits. Tokens cannot be listed; numbers and addresses can.) A token has another
// key at another host, so that one API cannot hold the calls to another.
//
// A key does not reveal the tenant, so all keys get the same limits. If limits differ, write For
// yourself: find the tenant, for instance in the request's context, and use an [outbound.Keyed].
// Its key may be the tenant's name; do not use the token.
//
// A request without the header, or with an empty one, has the empty key. ByHeader does not see what
// a Base adds: an OAuth transport belongs around this one.
//
// If limiter is nil, all requests fail with [outbound.ErrInvalid].
func ByHeader(name string, limiter func(key string) outbound.Limiter) func(*http.Request) outbound.Limiter {
	name = http.CanonicalHeaderKey(name)
	return by("ByHeader", limiter, func(req *http.Request) string { return headerKey(name, req) })
}

// by returns the function that name is to return. Without a limiter it reports the mistake with the
// first request, because all requests would go unpaced.
func by(name string, limiter func(string) outbound.Limiter, key func(*http.Request) string) func(*http.Request) outbound.Limiter {
	if limiter == nil {
		none := broken{fmt.Errorf("transport: %s has no function: %w", name, outbound.ErrInvalid)}
		return func(*http.Request) outbound.Limiter { return none }
	}
	return func(req *http.Request) outbound.Limiter { return limiter(key(req)) }
}

func headerKey(name string, req *http.Request) string {
	values := req.Header[name]
	if strings.Join(values, "") == "" {
		return ""
	}
	return hashed(append([]string{name, hostKey(req.URL)}, values...)...)
}

// hashed returns half a hash of all parts. Each part follows its length, so that no two
// lists of parts are the same bytes.
func hashed(parts ...string) string {
	h := sha256.New()
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// broken is a limiter that refuses every request.
type broken struct{ err error }

func (b broken) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, b.err
}

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
// their usual form, or the name itself if it has no such form. The rules are those of
// net/http, which shows its result only to a dialer.
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
