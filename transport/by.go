package transport

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/dripfeed/dripfeed/outbound"
)

// ByHost returns a function for the field For of a [Transport], which gives
// each host the limiter that the function makes of its name, such as the
// method For of an [outbound.Keyed]:
//
//	hosts := &outbound.Keyed[string]{New: …}
//	client := &http.Client{Transport: &transport.Transport{For: transport.ByHost(hosts.For)}}
//
// A set that is not bounded as that one is grows with every host that somebody
// brings the program to call.
//
// The name is that of the URL, as a connection is made to it, and never the
// Host header: in lower case and ASCII ("xn--bcher-kva.example"), without a
// final dot, and without the port if it is the scheme's usual one; an IPv6
// address is in its short form, and in brackets if a port follows. All
// spellings of one host have one name. Each hop of a redirect is a request to
// its own host.
//
// A nil function makes all requests fail with [outbound.ErrNil].
func ByHost(limiter func(host string) outbound.Limiter) func(*http.Request) outbound.Limiter {
	if limiter == nil {
		return refuseAll("ByHost")
	}
	return func(req *http.Request) outbound.Limiter { return limiter(hostKey(req.URL)) }
}

// ByHeader returns a function for the field For of a [Transport], which gives
// each value of a header, such as Authorization, the limiter that the function
// makes of a key: 32 hexadecimal digits, which depend on the header's name, its
// value and the host that [ByHost] would tell, and do not reveal a token. (It
// is half a SHA-256 without a secret: whoever can list all values that are
// possible can find the one that fits. Tokens cannot be listed; numbers and
// addresses can.) A token has another key at another host, so that one API
// cannot hold the calls to another.
//
// A key does not tell whose token it is, so the function cannot choose a tenant's plan
// by it, and all get the same limits. Where they differ, write For yourself: it finds
// the tenant, such as in the request's context, and asks an [outbound.Keyed] for his
// limiter, whose key may then be his name, and never the token.
//
// A request without the header, or with nothing in it, has the empty key. What
// a Base adds is not seen: an OAuth transport belongs around this one.
//
// A nil function makes all requests fail with [outbound.ErrNil].
func ByHeader(name string, limiter func(key string) outbound.Limiter) func(*http.Request) outbound.Limiter {
	if limiter == nil {
		return refuseAll("ByHeader")
	}
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request) outbound.Limiter { return limiter(headerKey(name, req)) }
}

func headerKey(name string, req *http.Request) string {
	values := req.Header[name]
	empty := true
	for _, v := range values {
		empty = empty && v == ""
	}
	if empty {
		return ""
	}
	return hashed(append([]string{name, hostKey(req.URL)}, values...)...)
}

// hashed returns half a hash of all parts.
func hashed(parts ...string) string {
	h := sha256.New()
	// Each part after its length, so that no two lists are the same bytes.
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// refuseAll makes a mistake known with the first request. Doing without a
// limiter instead would let all go unpaced.
func refuseAll(name string) func(*http.Request) outbound.Limiter {
	l := broken{fmt.Errorf("transport: %s has no function: %w", name, outbound.ErrNil)}
	return func(*http.Request) outbound.Limiter { return l }
}

type broken struct{ err error }

func (b broken) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, b.err
}
