package transport

import (
	"net/http"
	"sync"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Discovered finds the limiter of a request where the API itself says, in its
// answers, which of its buckets a route belongs to, as Discord does with
// X-RateLimit-Bucket and GitHub with X-RateLimit-Resource. Several routes then
// share one limiter, and what the API says of it steers all of them:
//
//	d := &transport.Discovered{Route: route, Name: transport.HeaderName("X-RateLimit-Bucket"), Limiters: limiters}
//	client.Transport = &transport.Transport{For: d.For, OnResponse: d.Learn}
//
// Until a route's first answer its limiter is one of its own. Each host has its own
// routes and names, so that no host's answers touch another's limiters. It is safe
// for concurrent use.
type Discovered struct {
	// Route returns what stands for all requests of one kind, such as the method
	// and the path without its ids; "": the request has no limiter here. It must
	// not be made of what others choose freely: each is remembered, up to
	// MaxRoutes.
	Route func(*http.Request) string
	// Name returns the API's name for the bucket that the request of a response
	// belongs to; "": it has none. See [HeaderName].
	Name func(*http.Response) string
	// Limiters has the limiters, by keys that begin with the host: of a bucket that
	// the API has named, "api.example.com=name", and of a route whose bucket is not
	// known yet, "api.example.com route".
	Limiters *outbound.Keyed[string]
	// MaxRoutes is how many routes are remembered; others keep their own limiters.
	// 0 or less: 10 000.
	MaxRoutes int

	mu    sync.RWMutex
	names map[string]string // of hosts and routes
}

// maxName is the longest name of a bucket, in bytes, that is believed.
const maxName = 128

// HeaderName returns a function for [Discovered.Name] that takes the name from a
// header of the response.
func HeaderName(header string) func(*http.Response) string {
	header = http.CanonicalHeaderKey(header)
	return func(resp *http.Response) string { return resp.Header.Get(header) }
}

// For returns the limiter of a request, for [Transport.For]; nil: it has none here.
func (d *Discovered) For(req *http.Request) outbound.Limiter {
	route := d.Route(req)
	if route == "" {
		return nil
	}
	return d.Limiters.For(d.key(hostKey(req.URL), route))
}

// key returns the key of a route's limiter.
func (d *Discovered) key(host, route string) string {
	route = host + " " + route
	d.mu.RLock()
	defer d.mu.RUnlock()
	if name, ok := d.names[route]; ok {
		return host + "=" + name
	}
	return route
}

// Learn notes which bucket a request has belonged to, for [Transport.OnResponse].
// If a route turns out to be another bucket's and this very answer is a refusal,
// the bucket that it was charged to hears of that as always; the one that was
// found learns it from the next.
func (d *Discovered) Learn(resp *http.Response, _ *outbound.Permit) {
	if resp.Request == nil {
		return
	}
	name, route := d.Name(resp), d.Route(resp.Request)
	if name == "" || len(name) > maxName || route == "" {
		return
	}
	route = hostKey(resp.Request.URL) + " " + route
	d.mu.RLock()
	was, known := d.names[route]
	d.mu.RUnlock()
	if known && was == name {
		return
	}
	most := d.MaxRoutes
	if most <= 0 {
		most = 10_000
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = make(map[string]string)
	}
	if known || len(d.names) < most {
		d.names[route] = name
	}
}

// OnlyScope returns a function for [Transport.OnSignal] that heeds refusals of these
// scopes only, as [profile.Signal] has them, and what has none. With limiters in a
// row, one transport around the other, each heeds what is meant for it: the outer
// one "global", and the inner one what is not.
func OnlyScope(heed func(scope string) bool) func(*http.Response, *profile.Signal) {
	return func(_ *http.Response, s *profile.Signal) {
		if s.Throttled && !heed(s.Scope) {
			*s = profile.Signal{}
		}
	}
}
