package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
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
// Several accounts to get around a limit may break the terms of an API. Read them before you make
// a Pool of accounts.
//
// A request goes to the member that can send it soonest, and waits there. If it has waited longer
// than expected, as after a 429, it moves to another member that can send it clearly sooner. If a
// member refuses a request, the next one gets it. If all refuse, the error is the one with the
// least RetryAfter. A request that a [Transport] inside a member's Base has refused stays with
// that member if its body cannot be read again, because it has no GetBody.
//
// A member fails if it does not answer, if its body breaks off, and if it answers 401, 402, 403
// or a status from 500 on. Then the rule of [outbound.Pool] holds: the member rests, and one
// request at a time probes it. Ten other statuses from 400 on in a row are a failure while
// requests of other members succeed. One that answers a probe is a failure, too. So a missing
// resource rests no member. A 429 holds the member's limiter. If that takes no answers, a 429 is
// a failure.
//
// The program gets the answer of a member that fails, and later requests use other members.
// Package retry around a Pool sends the same request again immediately by another member, if that
// is free or sooner than the pause would end: see [WithRetry]. Each member judges its own
// responses. A Transport around a Pool does not, unless its Judge is [JudgeAlways].
//
// A Pool is safe for concurrent use. Do not change its fields once it is in use.
type Pool struct {
	// Members are what the Pool chooses from. A Pool without a member fails with
	// [outbound.ErrInvalid].
	Members []*Transport
	// Stick returns the key of a request, such as a conversation whose prompt is in a cache of the
	// API. All requests with one key go to the same member, in all processes whose Members have
	// the same order, while that can send them within Slack. Then they go to a second one, and so
	// on. If Stick is nil, or returns "", the soonest member sends the request.
	Stick func(*http.Request) string
	// Slack is the longest that a request with a key waits for the key's member. If Slack is zero,
	// it is a second.
	Slack time.Duration

	once   sync.Once
	chosen outbound.Pool // of members
}

// pooled is one request in a Pool, and the body of its response.
type pooled struct {
	io.ReadCloser
	ctx    context.Context
	retry  *retry  // or nil
	key    string  // of Stick, or empty
	asks   []asked // for each member
	member int     // the one that has admitted the request
	permit outbound.Permit
	call   outbound.Permit // of the Pool's choice
	closed atomic.Bool
}

// asked is what a request asks a member's limiter for.
type asked struct {
	limiter outbound.Limiter // nil if the member has none
	cost    outbound.Cost
	refused atomic.Pointer[refusedBy] // by a transport inside the member's Base, or the member has failed
}

// retryKey is the key of a context whose value is a *retry.
type retryKey struct{}

type retry struct {
	always bool
	again  func(*http.Response, error, time.Duration) bool
}

// WithRetry returns a context for a request that the program sends again if it fails, as package
// retry does. When a member of a [Pool] has failed, the Pool calls again with its response or its
// error, and with the wait until another member can send the request. If the result is true, the
// request moves there. again may read the response, and must not close it. Each member gets the
// request once. If always is true, the program sends the request again after any failure, so that
// the Pool may probe a member with it.
func WithRetry(ctx context.Context, always bool, again func(resp *http.Response, err error, wait time.Duration) bool) context.Context {
	return context.WithValue(ctx, retryKey{}, &retry{always, again})
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
	resendOf(req.Context()).again()
	r, err := p.pooled(req)
	if err != nil {
		return nil, err
	}
	var failed *http.Response // of the member before, if it has failed
	moved, reported := false, true
	defer func() {
		if !reported { // a Base panics
			r.call.Settle(outbound.Cost{})
			r.call.Done()
		}
	}()
	for out := req; ; {
		call, refused := p.chosen.Acquire(r.ctx, r.asks[0].cost)
		switch {
		case refused == nil:
		case moved:
			return failed, err
		default:
			if !sent {
				sent = true
				closeRequest(req)
			}
			by, _ := errors.AsType[*refusedBy](refused)
			return p.Members[by.member].refuse(req, by.error)
		}
		closeResponse(failed)
		r.call, reported, sent, unsent = call, false, true, false // unless roundTrip returns, and says otherwise
		i, inside := r.member, false
		failed, inside, err = p.Members[i].roundTrip(out, &r.permit)
		reported = true
		unsent = inside && !moved
		if failed != nil && failed.Request == out {
			failed.Request = req
		}
		if !r.report(p, failed, inside, err) {
			return failed, err
		}
		r.asks[i].refused.Store(&refusedBy{err, i})
		if !inside {
			e, unknown := p.chosen.Explain(r.ctx, r.asks[0].cost)
			if unknown != nil || !r.retry.again(failed, err, e.Wait) {
				return failed, err
			}
			moved = true
		}
		if out = readAgain(req); out == nil {
			return failed, err
		}
	}
}

// report notes how the member has answered. It returns whether another one may get the request.
func (r *pooled) report(p *Pool, resp *http.Response, inside bool, err error) (again bool) {
	ended := r.ctx.Err() != nil && context.Cause(r.ctx) != ErrTimeout
	status := 0 // if there is no response
	if err == nil {
		status = resp.StatusCode
	}
	failed := false
	switch {
	case inside:
		r.call.Settle(outbound.Cost{})
	case status == http.StatusTooManyRequests && r.permit.TakesAnswers():
		r.call.Answered(outbound.Answer{})
		failed = true
	case status == 0 && !ended, status >= 500, status >= 401 && status <= 403, status == http.StatusTooManyRequests:
		r.call.Failed()
		failed = true
	case status == 0, status >= 400:
		r.call.Answered(outbound.Answer{})
	case status != http.StatusSwitchingProtocols && !bodiless(resp):
		r.ReadCloser, resp.Body = resp.Body, r
	}
	r.call.Done()
	return r.ctx.Err() == nil && (inside || failed && r.retry != nil)
}

// Read notes a body that breaks off.
func (r *pooled) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if err != nil && err != io.EOF && !r.closed.Load() && (r.ctx.Err() == nil || context.Cause(r.ctx) == ErrTimeout) {
		r.call.Failed()
	}
	return n, err
}

func (r *pooled) Close() error {
	r.closed.Store(true)
	return r.ReadCloser.Close()
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
		for i := range p.Members {
			p.chosen.Members = append(p.chosen.Members, member{p, i})
		}
		p.chosen.Stick = func(ctx context.Context) string { return pooledOf(ctx).key }
		p.chosen.Slack = p.Slack
		p.chosen.Repeats = func(ctx context.Context) bool {
			r := pooledOf(ctx)
			return r.retry != nil && r.retry.always
		}
	})
	r := &pooled{asks: make([]asked, len(p.Members))}
	r.ctx = context.WithValue(req.Context(), pooledKey{}, r)
	r.retry, _ = req.Context().Value(retryKey{}).(*retry)
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
	if a.refused.Load() != nil {
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
	if by := a.refused.Load(); by != nil {
		return outbound.Permit{}, by
	}
	r.permit = outbound.Permit{}
	if a.limiter != nil {
		if err := r.permit.AcquireIn(ctx, a.limiter, a.cost); err != nil {
			return outbound.Permit{}, &refusedBy{err, m.i}
		}
	}
	r.member = m.i
	return outbound.Permit{}, nil
}
