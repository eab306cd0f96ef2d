package transport

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Discovered finds the limiter of a request for APIs whose answers name the bucket of a route, as
// Discord does with X-RateLimit-Bucket and GitHub with X-RateLimit-Resource. Several routes then
// share one limiter, which all their answers adjust:
//
//	d := &transport.Discovered{Route: route, Scope: scope, Name: transport.HeaderName("X-RateLimit-Bucket"), Limiters: limiters}
//	client.Transport = &transport.Transport{For: d.For, OnResponse: d.Learn}
//
// Each route has a limiter of its own, and each name has one that its routes share. The route's own
// limiter admits a request first, and then the limiter of the name that the route's last answer
// had, if it had one. So names never admit more than the routes' own limits do. If the limiters are
// queues, both may wait. Each host has its own routes and names, so that a host's answers only
// adjust its own limiters. A Discovered is safe for concurrent use.
type Discovered struct {
	// Route returns a text for all requests of one kind, such as the method and the path without its
	// ids. A request with an empty route has no limiter here. Do not make it of text from outside:
	// the Discovered remembers each route, up to MaxRoutes.
	Route func(*http.Request) string
	// Scope returns what else the API counts separately under one name and route, such as the token,
	// and at Discord also the channel, guild or webhook of the path. The Discovered keeps only a hash
	// of it, as [ByHeader] does. If Scope is nil, or returns "", there is one scope.
	Scope func(*http.Request) string
	// Name returns the API's name for the bucket of a response's request, or "". See [HeaderName].
	Name func(*http.Response) string
	// Limiters has the limiters, by keys that begin with the host: "api.example.com=name" for a
	// bucket that the API has named, and "api.example.com route" for a route. If Scope returns
	// anything, the key goes on with a space and 32 hexadecimal digits. While Limiters is full,
	// further routes and names of a host share one limiter of that host, "api.example.com". So a host
	// with many routes and names leaves other hosts theirs. It replaces the route's or the name's
	// limiter; the other one admits the request as always. The host's limiter is for all scopes: a
	// refusal of one token then holds all tokens, so set a large Max. Leave Overflow nil: it would
	// admit, and count, a request once for its route and once more for its name.
	Limiters *outbound.Keyed[string]
	// MaxRoutes is how many routes' names the Discovered remembers. Further routes have only their
	// own limiters. If it is zero or less, it is 10 000.
	MaxRoutes int

	mu    sync.RWMutex      // protects names
	names map[string]string // by host and route

	once  sync.Once
	hosts outbound.Keyed[string] // one limiter per host, while Limiters is full
}

const (
	defaultRoutes = 10_000
	maxName       = 128 // bytes of a name; a longer one is ignored
)

// HeaderName returns a function for [Discovered.Name] that takes the name from a header of
// the response.
func HeaderName(header string) func(*http.Response) string {
	return func(resp *http.Response) string { return resp.Header.Get(header) }
}

// For returns the limiter of a request, or nil, for [Transport.For].
func (d *Discovered) For(req *http.Request) outbound.Limiter {
	route := d.Route(req)
	if route == "" {
		return nil
	}
	l := &routed{discovered: d, host: hostKey(req.URL)}
	l.route = l.host + " " + route
	if d.Scope != nil {
		if scope := d.Scope(req); scope != "" {
			l.scope = " " + hashed(scope)
		}
	}
	return l
}

// Learn notes which bucket a request belonged to, for [Transport.OnResponse]. If the name is new
// for the route, this answer adjusts the route's own limiter and the one that admitted the request.
// It also adjusts the new name's limiter if that admits the request immediately, which charges it,
// too.
func (d *Discovered) Learn(resp *http.Response, _ *outbound.Permit) {
	if resp.Request == nil {
		return
	}
	name, route := d.Name(resp), d.Route(resp.Request)
	if name == "" || len(name) > maxName || route == "" {
		return
	}
	route = hostKey(resp.Request.URL) + " " + route
	limit := d.MaxRoutes
	if limit <= 0 {
		limit = defaultRoutes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = make(map[string]string)
	}
	if _, known := d.names[route]; known || len(d.names) < limit {
		d.names[route] = name
	}
}

// routed is the limiter of one request.
type routed struct {
	discovered         *Discovered
	host, route, scope string
}

// name returns the name that the route has now.
func (l *routed) name() string {
	l.discovered.mu.RLock()
	defer l.discovered.mu.RUnlock()
	return l.discovered.names[l.route]
}

// named asks the limiter of a name.
func (l *routed) named(ctx context.Context, name string, c outbound.Cost) (outbound.Permit, error) {
	return l.discovered.Limiters.Acquire(ctx, l.host+"="+name+l.scope, c)
}

// overflow asks the host's limiter, because Limiters is full.
func (l *routed) overflow(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	d := l.discovered
	d.once.Do(func() {
		from := d.Limiters
		d.hosts.New, d.hosts.Max, d.hosts.Label, d.hosts.Overflow = from.New, from.Max, from.Label, from.Overflow
	})
	return d.hosts.Acquire(ctx, l.host, c)
}

func (l *routed) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	own, err := l.discovered.Limiters.Acquire(ctx, l.route+l.scope, c)
	crowded := errors.Is(err, outbound.ErrFull)
	if crowded {
		own, err = l.overflow(ctx, c)
	}
	if err != nil {
		return outbound.Permit{}, err
	}
	k := &routedCall{limiter: l, name: l.name(), cost: c, own: own}
	if k.name != "" {
		k.named, err = l.named(ctx, k.name, c)
		switch full := errors.Is(err, outbound.ErrFull); {
		case full && crowded: // the host's limiter has counted the call already
			k.name, err = "", nil
		case full:
			k.named, err = l.overflow(ctx, c)
		}
		if err != nil {
			k.own.Settle(outbound.Cost{})
			k.own.Done()
			return outbound.Permit{}, err
		}
	}
	return outbound.NewPermit(k), nil
}

// routedCall is the permit of a call by all limiters that it is charged to.
type routedCall struct {
	limiter  *routed
	name     string // of the route when the call left, or empty if no limiter of a name has counted it
	cost     outbound.Cost
	own      outbound.Permit // of the route's limiter, or of the host's
	named    outbound.Permit // of the name's limiter
	found    outbound.Permit // of the limiter of a name that the API has returned meanwhile
	lookedUp bool            // found was looked for
}

// lookUpTimeout is how long the limiter of a new name may take to admit the call whose answer named
// it. It is longer than a request to a store, and shorter than most waits.
const lookUpTimeout = 100 * time.Millisecond

// Answered reports the answer to the limiter that admitted the call last. If the API has named
// another bucket meanwhile, Answered also reports it to the new name's limiter, and to the route's
// own, which then holds the route under all names. The zero Answer goes to all of them.
func (k *routedCall) Answered(a outbound.Answer) {
	if a.Kind == "" {
		k.each(func(p *outbound.Permit) { p.Answered(a) })
		return
	}
	k.named.Answered(a)
	name := k.limiter.name()
	if k.name == "" || name != k.name {
		k.own.Answered(a)
	}
	if name == k.name {
		return
	}
	if !k.lookedUp {
		k.lookedUp = true
		ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
		defer cancel()
		if p, err := k.limiter.named(ctx, name, k.cost); err == nil {
			k.found = p
		}
	}
	k.found.Answered(a)
}

func (k *routedCall) Settle(used outbound.Cost) {
	k.each(func(p *outbound.Permit) { p.Settle(used) })
}

func (k *routedCall) Done() {
	k.lookedUp = true // a permit that is found from now on would never end
	k.each((*outbound.Permit).Done)
}

// State is that of the route's permit.
func (k *routedCall) State() outbound.State { return k.own.State() }

// each calls do for all permits. A zero Permit has nothing to do.
func (k *routedCall) each(do func(*outbound.Permit)) {
	do(&k.named)
	do(&k.own)
	do(&k.found)
}

// OnlyScope returns a function for [Transport.OnSignal] that applies refusals of these scopes only,
// as [profile.Signal] has them, and everything that is no refusal. If "endpoint" applies, the
// limiter is an endpoint's, and its lock counts as a refusal by the rate. Each of two nested
// transports then applies what is meant for it: the outer one "global", and the inner one, with
// [JudgeAlways], everything else. Without JudgeAlways inside, a refusal of another scope is lost.
func OnlyScope(applies func(scope string) bool) func(*http.Response, *profile.Signal) {
	return func(_ *http.Response, s *profile.Signal) {
		switch {
		case s.Throttled && !applies(s.Scope):
			*s = profile.Signal{}
		case s.Reason == profile.Lock && s.Scope == "endpoint":
			s.Reason = profile.Rate
		}
	}
}
