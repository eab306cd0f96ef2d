package retry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// attempt is one request of the retryablehttp client. It travels down in the context, and up in the
// response's Request or in an Error: CheckRetry and Backoff get nothing else.
type attempt struct {
	req     *http.Request
	waited  time.Duration // for the limiter, except in it if MaxWait is zero
	refused error         // by the limiter, or nil
	signal  signal        // of the response
	judged  bool          // the transport has read the signal
	cancel  func()        // ends the response
	pause   time.Duration // until the next attempt, if the API has asked for one
	least   time.Duration // the shortest time that members of a Pool have asked for, or 0
}

type attemptKey struct{}

// attemptOf returns the attempt of a context, or nil.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// result returns the attempt that has led to a response or an error, and the Error, or nil.
func result(resp *http.Response, err error) (*attempt, *Error) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.attempt, e
	}
	if err != nil || resp == nil || resp.Request == nil {
		return nil, nil
	}
	return attemptOf(resp.Request.Context()), nil
}

// sender sends attempts. It has no CloseIdleConnections on purpose: retryablehttp calls that for
// each request that it gives up, and other requests use the connections as well.
type sender struct {
	policy    *policy
	transport *transport.Transport
}

func newSender(p *policy, t *transport.Transport) *sender {
	own := p.waiting(t)
	own.OnSignal = func(resp *http.Response, s *profile.Signal) {
		if a, _ := result(resp, nil); a != nil {
			a.signal, a.judged = signalOf(resp.StatusCode, s), true
		}
		if t.OnSignal != nil {
			t.OnSignal(resp, s)
		}
	}
	return &sender{p, own}
}

func (s *sender) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := s.policy.again(req); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	a := &attempt{req: req}
	own := req.WithContext(context.WithValue(req.Context(), attemptKey{}, a))
	ctx, cancel := context.WithCancel(own.Context())
	a.cancel = cancel
	if retriesOf(req.Context()) < s.policy.client.RetryMax {
		ctx = transport.WithRetry(ctx, a.again(nil, s.policy.Safe), func(resp *http.Response, err error, wait time.Duration) bool {
			return s.elsewhere(a, resp, err, wait)
		})
	}
	sent := own.WithContext(ctx)
	resp, err := s.transport.RoundTrip(sent)
	if err != nil {
		cancel()
		a.signal.throttled = errors.Is(err, transport.ErrCalm)
		return nil, newError(a, err)
	}
	s.read(a, resp)
	if resp.Request == sent {
		resp.Request = own
	}
	switch {
	case resp.Body == nil || resp.Body == http.NoBody:
		cancel()
	case resp.StatusCode != http.StatusSwitchingProtocols: // a connection outlives its handshake
		resp.Body = &body{resp.Body, cancel}
	}
	return resp, nil
}

// read reads the signal of a response, if another transport judges it.
func (s *sender) read(a *attempt, resp *http.Response) {
	if !a.judged && a.refused == nil {
		read := s.transport.Profile.Read(resp, time.Time{})
		a.signal = signalOf(resp.StatusCode, &read)
	}
}

// elsewhere reports whether another member of a Pool may send the request after a wait, because one
// has failed.
func (s *sender) elsewhere(a *attempt, resp *http.Response, err error, wait time.Duration) bool {
	p, ctx := s.policy, a.req.Context()
	a.signal = signal{}
	if resp != nil {
		s.read(a, resp)
	}
	if a.signal.wait > 0 && (a.least == 0 || a.signal.wait < a.least) {
		a.least = a.signal.wait
	}
	what, most := failed, time.Duration(0)
	if resp != nil && resp.StatusCode < 500 { // this member cannot carry it out
		a.signal.refused, what = true, refused
		most, _ = longest(ctx, p.MaxWait, a.waited)
	} else {
		most, _ = longest(ctx, 0, 0)
		most = min(most, unasked(p.client.RetryWaitMin, p.client.RetryWaitMax, retriesOf(ctx)))
	}
	if a.signal.wait > 0 {
		most = min(most, a.signal.wait)
	}
	return ctx.Err() == nil && a.again(err, p.Safe) && (resp == nil || !announced(a.req)) && wait <= most && p.spend(what)
}

// again reports whether the request may be sent once more after an attempt that has ended with err,
// or with a response.
func (a *attempt) again(err error, safe func(*http.Request) bool) bool {
	switch {
	case a.refused != nil, a.signal.refused, err != nil && dialing(err):
		return true // the API has carried nothing out
	case idempotencyKey(a.req) != "":
		return true
	}
	switch a.req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut,
		http.MethodDelete:
		return true
	}
	return safe != nil && safe(a.req)
}

// dialing reports whether the API cannot have seen the request, because dialing has failed.
func dialing(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "dial" || dialing(op.Err)) // a proxy's error is around it
}

// idempotencyKey returns the key by which the API recognizes a request that comes again.
func idempotencyKey(req *http.Request) string {
	return req.Header.Get("Idempotency-Key") + req.Header.Get("X-Idempotency-Key")
}

// signal is what a response says about the API's limits.
type signal struct {
	throttled bool
	refused   bool          // and certainly not carried out
	permanent bool          // and a retry helps only after a person acts
	wait      time.Duration // 0 if unknown
}

// signalOf returns what a profile has read of a response. A refusal of another scope than the
// limiter's is one for its request as well.
func signalOf(status int, s *profile.Signal) signal {
	if !s.Throttled {
		return signal{}
	}
	got := signal{throttled: true, wait: s.Wait, permanent: s.TooLarge}
	switch s.Reason {
	case profile.Rate, profile.Concurrency, profile.Lock:
		got.refused = true
	case profile.Quota: // no time in the response brings credit
		got.refused = true
		got.permanent = s.Wait <= 0 || strings.Contains(s.Detail, "insufficient_quota") ||
			strings.Contains(s.Detail, "billing")
	default: // an API with troubles of its own may fail half-way
		got.refused = status == http.StatusTooManyRequests
	}
	// With such a status only the API's own word proves that nothing was done, as AWS has SlowDown.
	if status >= 500 && s.Detail == "" {
		got.refused, got.permanent = false, false
	}
	if !got.refused && got.wait <= 0 {
		return signal{} // a failure like any other
	}
	return got
}
