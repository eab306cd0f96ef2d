package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Pool is an [http.RoundTripper] that sends each request by one of several members: the API keys,
// regions or deployments of one API. The Base of each member adds its key or chooses its host:
//
//	pool := &transport.Pool{Members: []*transport.Transport{
//		{Limiter: queue.New(bucketA, queue.Config{}), Base: withKey(keyA)},
//		{Limiter: queue.New(bucketB, queue.Config{}), Base: withKey(keyB)},
//	}}
//
// Several accounts to get around a limit may break the terms of an API. Read them before you make a
// Pool of accounts.
//
// A request goes to the member that can send it soonest, and waits there. If it has waited longer
// than expected, as after a 429, it moves to another member that can send it clearly sooner. All
// else is as with an [outbound.Pool] of the members' limiters.
//
// If a member refuses a request, the next one gets it. If all refuse, the error is the one with the
// least RetryAfter. A Pool sends a request again only if a [Transport] inside a member's Base has
// refused it, so that the API has not seen it. A request whose body cannot be read again, because
// it has no GetBody, then stays with that member.
//
// A member whose API answers 401 or 403 gets no request for a minute, unless all members rest. Each
// member judges its own responses. A Transport around a Pool does not, unless its Judge is
// [JudgeAlways].
//
// The program gets a 429 of the API as the response, and only later requests use other members.
// Package retry around a Pool sends the request again after the time that the API asks for, even
// if another member is free.
//
// A Pool is safe for concurrent use. Do not change its fields once it is in use.
type Pool struct {
	// Members are what the Pool chooses from. A Pool without a member fails with
	// [outbound.ErrInvalid].
	Members []*Transport
	// Stick returns the key of a request, such as a conversation whose prompt is in a cache of the
	// API. All requests with one key go to the same member, in all processes whose Members have the
	// same order, while that can send them within Slack. Then they go to a second one, and so on. If
	// Stick is nil, or returns "", the soonest member sends the request.
	Stick func(*http.Request) string
	// Slack is the longest that a request with a key waits for the key's member. If Slack is zero, it
	// is a second.
	Slack time.Duration

	once   sync.Once
	chosen outbound.Pool // of members

	mu    sync.Mutex // protects what follows
	state []memberState
}

// memberState is what a Pool knows of a member.
type memberState struct {
	rests   time.Time                           // until then
	waiting map[*pooled]context.CancelCauseFunc // each ends the wait of a request at its limiter
}

const poolRest = time.Minute

var errRests = errors.New("transport: the member rests after a 401 or 403")

// pooled is one request in a Pool.
type pooled struct {
	key    string     // of Stick, or empty
	asks   []asked    // for each member
	other  *refusedBy // by a member that does not rest, or nil
	member int        // the one that has admitted the request
	permit outbound.Permit
}

// asked is what a request asks a member's limiter for.
type asked struct {
	limiter outbound.Limiter // nil if the member has none
	cost    outbound.Cost
	refused error // by a transport inside the member's Base, or nil. The Pool's mu protects it
}

type pooledKey struct{}

func pooledOf(ctx context.Context) *pooled { return ctx.Value(pooledKey{}).(*pooled) }

// RoundTrip sends the request by the member that can send it soonest.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := false // to a member's Base, which closes the body
	defer func() {
		if !sent {
			closeRequest(req)
		}
	}()
	outer, unsent := linkOf(req.Context(), p), true
	outer.enter()
	defer func() { outer.leave(unsent) }()
	r, err := p.pooled(req)
	if err != nil {
		return nil, err
	}
	ctx := context.WithValue(req.Context(), pooledKey{}, r)
	for out := req; out != nil; {
		if _, err = p.chosen.Acquire(ctx, r.asks[0].cost); err != nil {
			by, _ := errors.AsType[*refusedBy](err)
			if by.error == errRests {
				if by = r.other; by == nil {
					continue // other members rest now
				}
			}
			if !sent {
				sent = true
				closeRequest(req)
			}
			return p.Members[by.member].refuse(req, by.error)
		}
		i := r.member
		sent = true
		unsent = false // unless roundTrip returns, and says otherwise
		var resp *http.Response
		if resp, unsent, err = p.Members[i].roundTrip(out, &r.permit); err == nil {
			if p.answered(i, resp.StatusCode); resp.Request == out {
				resp.Request = req
			}
			return resp, nil
		}
		if !unsent || ctx.Err() != nil {
			break
		}
		p.mu.Lock()
		r.asks[i].refused = err
		p.mu.Unlock()
		out = readAgain(req)
	}
	return nil, err
}

// readAgain returns the request with its body from the beginning, or nil without a GetBody.
func readAgain(req *http.Request) *http.Request {
	again := *req
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return nil
		}
		var err error
		if again.Body, err = req.GetBody(); err != nil {
			return nil
		}
	}
	return &again
}

// pooled asks the user's functions about a request.
func (p *Pool) pooled(req *http.Request) (*pooled, error) {
	if len(p.Members) == 0 || slices.Contains(p.Members, nil) {
		return nil, fmt.Errorf("transport: a Pool without a member, or with a nil one: %w", outbound.ErrInvalid)
	}
	p.once.Do(func() {
		p.state = make([]memberState, len(p.Members))
		for i := range p.Members {
			p.state[i].waiting = map[*pooled]context.CancelCauseFunc{}
			p.chosen.Members = append(p.chosen.Members, member{p, i})
		}
		p.chosen.Stick = func(ctx context.Context) string { return pooledOf(ctx).key }
		p.chosen.Slack = p.Slack
	})
	r := &pooled{asks: make([]asked, len(p.Members))}
	for i, t := range p.Members {
		if r.asks[i].limiter, _ = t.limiter(req); r.asks[i].limiter != nil {
			r.asks[i].cost = t.cost(req, ctxCostOf(req.Context()))
		}
	}
	if p.Stick != nil {
		r.key = p.Stick(req)
	}
	return r, nil
}

// answered notes the status of a member's response.
func (p *Pool) answered(i, status int) {
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state[i].rests = time.Now().Add(poolRest)
	if p.rests(i) > 0 {
		for _, cancel := range p.state[i].waiting {
			cancel(errRests)
		}
	}
}

// rests returns for how long a member gets no request. It is 0 if all members rest. p.mu is held.
func (p *Pool) rests(i int) time.Duration {
	now := time.Now()
	if !slices.ContainsFunc(p.state, func(s memberState) bool { return !s.rests.After(now) }) {
		return 0
	}
	return max(0, p.state[i].rests.Sub(now))
}

// member is a member of a Pool, as the limiter of its requests.
type member struct {
	pool *Pool
	i    int
}

// refusedBy is a member's error.
type refusedBy struct {
	error
	member int
}

func (e *refusedBy) Unwrap() error { return e.error }

// Explain is that of the member's limiter.
func (m member) Explain(ctx context.Context, _ outbound.Cost) (outbound.Explanation, error) {
	a := &pooledOf(ctx).asks[m.i]
	m.pool.mu.Lock()
	refuses := m.pool.rests(m.i) > 0 || a.refused != nil
	m.pool.mu.Unlock()
	if refuses {
		return outbound.Explanation{Wait: math.MaxInt64 / 2}, nil
	}
	x, ok := outbound.As[interface {
		Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
	}](a.limiter)
	if !ok {
		return outbound.Explanation{}, nil
	}
	return x.Explain(ctx, a.cost)
}

// Acquire has the member's limiter admit the request.
func (m member) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	r := pooledOf(ctx)
	a := &r.asks[m.i]
	r.permit = outbound.Permit{}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := cmp.Or(a.refused, m.enter(r, cancel))
	defer m.leave(r)
	if err == nil && a.limiter != nil {
		if err = r.permit.AcquireIn(ctx, a.limiter, a.cost); err != nil && context.Cause(ctx) == errRests {
			err = errRests
		}
	}
	if err != nil {
		by := &refusedBy{err, m.i}
		if err != errRests && ctx.Err() == nil {
			r.other = by
		}
		return outbound.Permit{}, by
	}
	r.member = m.i
	return outbound.Permit{}, nil
}

// enter notes that a request waits at the member. It returns an error if the member rests.
func (m member) enter(r *pooled, cancel context.CancelCauseFunc) error {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	if m.pool.rests(m.i) > 0 {
		return errRests
	}
	m.pool.state[m.i].waiting[r] = cancel
	return nil
}

func (m member) leave(r *pooled) {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	delete(m.pool.state[m.i].waiting, r)
}
