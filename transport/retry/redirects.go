package retry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/internal/early"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const (
	// clockTolerance is how much too early the limiter may admit an attempt that still goes,
	// after a wait of that time: a store's clock and ours differ.
	clockTolerance = 5 * time.Millisecond
	// minHold is how long a limiter that has heard of a refusal holds its calls at least,
	// also if the API has not said how long; less if MaxHold is.
	minHold = time.Second
)

// redirects sends the requests of an attempt, one for each hop. It has no
// CloseIdleConnections on purpose: retryablehttp calls that for each request that it gives
// up, but others use the connections as well.
type redirects struct {
	policy    *policy
	transport *transport.Transport
}

func newRedirects(p *policy, t *transport.Transport) *redirects {
	if t == nil {
		t = &transport.Transport{Limiter: broken{}}
	}
	paced := *t
	if p.MaxWait > 0 {
		paced.Limiter = p.bound(t.Limiter)
		if t.For != nil {
			paced.For = func(req *http.Request) outbound.Limiter { return p.bound(t.For(req)) }
		}
	}
	held := minHold
	if t.MaxHold > 0 {
		held = min(held, t.MaxHold)
	}
	paced.Base = &departGate{base: t.Base, held: held}
	// The transport reads the response, and applies its headers before a body that is late.
	paced.OnSignal = func(resp *http.Response, s *profile.Signal) {
		if r := requestOf(resp.Request.Context()); r != nil {
			r.noteSignal(resp.StatusCode, s)
		}
		if t.OnSignal != nil {
			t.OnSignal(resp, s)
		}
	}
	paced.OnRefusal = func(req *http.Request, reason error) (*http.Response, error) {
		if r := requestOf(req.Context()); r != nil {
			r.noteRefusal(reason)
		}
		if t.OnRefusal == nil {
			return nil, nil // stands for the reason
		}
		return t.OnRefusal(req, reason)
	}
	return &redirects{p, &paced}
}

func (h *redirects) RoundTrip(req *http.Request) (*http.Response, error) {
	r := requestOf(req.Context())
	if r == nil {
		return h.transport.RoundTrip(req)
	}
	// Nothing is left to wait for, unless the program has a PrepareRetry of its own.
	if err := r.pause(req.Context()); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	if err := r.blocked(); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	if r.getBody != nil {
		next := *req
		next.GetBody = r.getBody
		req = &next
	}
	for {
		r.startHop(h.transport)
		resp, err := h.transport.RoundTrip(req)
		r.readSignal(h.transport.Profile, resp)
		if req.Response == nil || r.oneHop || !h.policy.waitsHere(r, req, r.refusal(resp, err)) {
			return resp, r.unearly(err)
		}
		if resp != nil { // OnRefusal's
			closeBody(resp.Body)
		}
		if err := r.pause(req.Context()); err != nil {
			return nil, err
		}
		if req, err = withNewBody(req); err != nil {
			return nil, err
		}
	}
}

// unearly returns the refusal that early.Err stands for, and any other error as it is. A Transport
// around the client would take early.Err for its own, and give back what earlier attempts cost.
func (r *request) unearly(err error) error {
	if !errors.Is(err, early.Err) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusedByAPI(nil, r.early)
}

// refusal returns why the limiter has not admitted a hop, also where OnRefusal has made a 429
// of that; or else the hop's error, or nil.
func (r *request) refusal(resp *http.Response, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		return r.limited
	}
	return err
}

// waitsHere reports whether a later hop of a redirect waits for the limiter here. If the
// whole attempt began anew instead, the first hop would take the second hop's room each time.
func (p *policy) waitsHere(r *request, req *http.Request, err error) bool {
	var full *outbound.ThrottledError
	if !errors.As(err, &full) || !replayable(req) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ok, _ := p.plan(req.Context(), r, limited, full.RetryAfter)
	return ok
}

// withNewBody returns the request with its body anew.
func withNewBody(req *http.Request) (*http.Request, error) {
	next := *req
	if req.Body != nil && req.Body != http.NoBody {
		var err error
		if next.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// departGate stands between the transport and its Base. It sees what really goes out, and
// lets no attempt go earlier than the API has asked for. A limiter that hears of refusals has
// held the attempt that long anyway. One that does not, such as outbound.Unlimited, has not,
// and neither has one that heard of another reason than its quota.
type departGate struct {
	base http.RoundTripper
	held time.Duration // after a refusal, by a limiter that has heard of it
}

func (d *departGate) RoundTrip(req *http.Request) (*http.Response, error) {
	r := requestOf(req.Context())
	if r == nil {
		return d.inner().RoundTrip(req)
	}
	if err := r.leave(req.Context(), d.held); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	resp, err := d.send(r, req)
	r.noteResponse(resp, err)
	return resp, err
}

// send sends a hop with a context of its own, so that a response that nobody wants can be
// ended without ending the request.
func (d *departGate) send(r *request, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	own, body := req.WithContext(ctx), &cancelAtEnd{cancel: cancel}
	resp, err := d.inner().RoundTrip(own)
	if err != nil || resp == nil || resp.Body == nil || resp.Body == http.NoBody {
		cancel()
	} else if resp.StatusCode != http.StatusSwitchingProtocols { // a connection outlives its handshake
		body.ReadCloser, resp.Body = resp.Body, body
		r.setCancel(cancel)
	}
	if resp != nil && resp.Request == own {
		resp.Request = req
	}
	return resp, err
}

func (d *departGate) inner() http.RoundTripper {
	if d.base == nil {
		return http.DefaultTransport
	}
	return d.base
}

// Unwrap returns the Base, by which a transport finds the next one in a row.
func (d *departGate) Unwrap() http.RoundTripper { return d.inner() }

func (d *departGate) CloseIdleConnections() {
	if c, ok := d.inner().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// leave lets a hop go out, or returns early.Err. By that the transport knows that nothing has
// gone out, and gives the units back.
func (r *request) leave(ctx context.Context, held time.Duration) error {
	left, err := r.depart(held)
	if err != nil {
		return err
	}
	return sleep(ctx, left)
}

// depart is leave without the wait for the rest of the time, up to clockTolerance.
func (r *request) depart(held time.Duration) (left time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.refusedAt.IsZero() {
		passed := time.Since(r.refusedAt)
		switch {
		case r.asked > 0:
		case passed < held-clockTolerance: // no limiter has held it
			r.asked = r.unheldPause()
		default:
			r.unheld = 0
		}
		left = max(0, r.asked-passed)
		if left > clockTolerance {
			r.early = left
			return 0, early.Err
		}
	}
	r.unknownWaits = 0
	if !r.sent {
		r.sent = true
		r.attempts++
	}
	return left, nil
}

// neverSent reports whether the API cannot have seen the request: dialing failed, or the
// limiter of a transport below has not admitted it.
func neverSent(err error) bool {
	if errors.Is(err, outbound.ErrThrottled) {
		return true
	}
	var op *net.OpError
	for errors.As(err, &op) {
		if op.Op == "dial" {
			return true
		}
		err = op.Err // a proxy's error is around it
	}
	return false
}
