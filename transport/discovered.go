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

// Discovered finds the limiter of a request where the API itself says, in its
// answers, which of its buckets a route belongs to, as Discord does with
// X-RateLimit-Bucket and GitHub with X-RateLimit-Resource. Several routes then
// share one limiter, and what the API says of it steers all of them:
//
//	d := &transport.Discovered{Route: route, Scope: scope, Name: transport.HeaderName("X-RateLimit-Bucket"), Limiters: limiters}
//	client.Transport = &transport.Transport{For: d.For, OnResponse: d.Learn}
//
// Each route has a limiter of its own, and each name one that its routes share. A
// request is admitted by its route's own, and then by that of the name which the
// route's last answer had, if it had one: so no name, and no change of names, lets out
// more than the routes' own limits do. Where the limiters are queues, both may wait;
// the last one is the name's. Each host has its own routes and names, so that no
// host's answers touch another's limiters. It is safe for concurrent use.
type Discovered struct {
	// Route returns what stands for all requests of one kind, such as the method
	// and the path without its ids; "": the request has no limiter here. It must
	// not be made of what others choose freely: each is remembered, up to
	// MaxRoutes.
	Route func(*http.Request) string
	// Scope returns what else the API counts apart, under the same name and on the
	// same route, such as the token, and at Discord also the channel, guild or webhook
	// that the path is about. Only a hash of it is kept, as of [ByHeader]. nil, or "":
	// nothing does.
	Scope func(*http.Request) string
	// Name returns the API's name for the bucket that the request of a response
	// belongs to; "": it has none. See [HeaderName].
	Name func(*http.Response) string
	// Limiters has the limiters, by keys that begin with the host: of a bucket that
	// the API has named, "api.example.com=name", and of a route,
	// "api.example.com route". What Scope has returned follows, if anything, as a space
	// and 32 hexadecimal digits. Where there is no room for one, all that have none
	// share one limiter of their host, "api.example.com", so that a host with many
	// routes and names, all of them held, leaves others theirs. That one is for all
	// scopes: a refusal of one token then holds the others, so give Max enough.
	Limiters *outbound.Keyed[string]
	// MaxRoutes is of how many routes the names are remembered; others keep to their
	// own limiters. 0 or less: 10 000.
	MaxRoutes int

	mu    sync.RWMutex
	names map[string]string // of hosts and routes

	once  sync.Once
	hosts outbound.Keyed[string] // limiters of hosts, for what has no room among Limiters
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
	l := &routed{discovered: d, host: hostKey(req.URL)}
	l.route = l.host + " " + route
	if d.Scope != nil {
		if scope := d.Scope(req); scope != "" {
			l.scope = " " + hashed(scope)
		}
	}
	return l
}

// Learn notes which bucket a request has belonged to, for [Transport.OnResponse].
// If that is news, what this very answer says is told to the limiter of the route, to
// the one that the request was charged to, and, if that has room for it just then, to
// the one that was found, which it is charged to as well.
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

func (l *routed) named(ctx context.Context, name string, c outbound.Cost) (outbound.Permit, error) {
	return l.discovered.Limiters.Acquire(ctx, l.host+"="+name+l.scope, c)
}

// spare has the host's limiter admit what has no room for one of its own.
func (l *routed) spare(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	d := l.discovered
	d.once.Do(func() {
		from := d.Limiters
		d.hosts.New, d.hosts.Max, d.hosts.Label, d.hosts.Overflow = from.New, from.Max, from.Label, from.Overflow
	})
	return d.hosts.Acquire(ctx, l.host, c)
}

func (l *routed) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	own, err := l.discovered.Limiters.Acquire(ctx, l.route+l.scope, c)
	if errors.Is(err, outbound.ErrFull) {
		return l.spare(ctx, c)
	}
	if err != nil {
		return outbound.Permit{}, err
	}
	k := &routedCall{limiter: l, name: l.name(), cost: c, own: own}
	k.permit = &k.own
	if k.name != "" {
		named, err := l.named(ctx, k.name, c)
		if errors.Is(err, outbound.ErrFull) {
			named, err = l.spare(ctx, c)
		}
		if err != nil {
			own.Settle(outbound.Cost{})
			own.Done()
			return outbound.Permit{}, err
		}
		k.permit = &named
	}
	return outbound.NewPermit(k), nil
}

// routedCall is the permit of a call by all limiters that it is charged to.
type routedCall struct {
	permit     *outbound.Permit // of what the API had named when the call left; before that the route's own
	limiter    *routed
	name       string
	cost       outbound.Cost
	own, found outbound.Permit
	looked     bool // for what the API has named meanwhile
}

// handOver is how long a limiter that was found may take to hear of the answer that
// named it: longer than a trip to a store, and hardly a wait.
const handOver = 100 * time.Millisecond

// Answered tells the answer to the limiter that admitted the call. Where the API has
// named another one meanwhile, Answered also tells the route's own, which then holds the
// route whatever its next names are, and the one that was found. That no answer came, it
// tells all.
func (k *routedCall) Answered(a outbound.Answer) {
	if a.Kind == outbound.AnswerNone {
		k.all(func(p *outbound.Permit) { p.Answered(a) })
		return
	}
	k.permit.Answered(a)
	name := k.limiter.name()
	if name == k.name {
		return
	}
	if k.permit != &k.own {
		k.own.Answered(a)
	}
	if !k.looked {
		k.looked = true
		ctx, cancel := context.WithTimeout(context.Background(), handOver)
		defer cancel()
		if p, err := k.limiter.named(ctx, name, k.cost); err == nil {
			k.found = p
		}
	}
	k.found.Answered(a)
}

func (k *routedCall) Settle(used outbound.Cost) {
	k.all(func(p *outbound.Permit) { p.Settle(used) })
}

func (k *routedCall) Done() {
	k.looked = true // what were found now, nobody would end
	k.all((*outbound.Permit).Done)
}

func (k *routedCall) all(do func(*outbound.Permit)) {
	do(k.permit)
	if k.permit != &k.own {
		do(&k.own)
	}
	do(&k.found)
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
