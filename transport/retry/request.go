package retry

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// request is one request through all its attempts. It travels in the request's context:
// CheckRetry gets nothing else, and Backoff not even that if an attempt has ended with an
// error.
type request struct {
	oneHop  bool                          // the caller follows redirects itself
	getBody func() (io.ReadCloser, error) // for Base; nil: the request's own

	mu        sync.Mutex // protects what follows: the program may have wrapped the client's transport
	ctx       context.Context
	parent    context.Context      // ctx without this request
	req       *http.Request        // of this attempt
	transport *transport.Transport // that sends it
	replay    bool                 // its body can be read again

	attempts     int           // that went out
	throttled    int           // refusals by the API
	failures     int           // failures of attempts, or of a store
	unknownWaits int           // pauses after refusals that told no time
	unheld       int           // refusals after which nobody waited but the request itself
	since        time.Time     // when it was first refused; zero: nothing has refused it
	waited       time.Duration // for room: in the limiter, and between attempts
	next         time.Time     // when the next attempt may begin
	cause        error         // of the last refusal

	// What the API asked for last.
	refusedAt time.Time
	asked     time.Duration

	// This attempt.
	sent   bool  // something of it went out
	acted  bool  // the API may have done what it asks for
	judged bool  // check or planUnchecked has seen it
	end    error // check's verdict on it
	noBody error // its body cannot be read again
	over   error // planUnchecked has ended the request
	last   bool  // RetryMax allows no further attempt, and the program may read this response

	// If the client gives the request up after this attempt.
	endError *Error    // the error that the request ends with
	until    time.Time // when it may be sent again; zero: it is not given up

	// This hop of it.
	limited     error         // the limiter's refusal
	early       time.Duration // the limiter has admitted it so much before its time
	failed      error         // Base's error
	respondedAt time.Time     // when its response came; zero: there is none
	cancel      func()        // ends it, also while its response is read; nil: nothing of it goes on
	status      int           // of the response
	signal      signal
	hasSignal   bool // signal is that of the response
}

type requestKey struct{}

// requestOf returns the request of a context, or nil.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// begin is the RequestLogHook: the only hook that retryablehttp calls before the first
// attempt, and before each further one.
func (p *policy) begin(_ retryablehttp.Logger, req *http.Request, attempt int) {
	r := requestOf(req.Context())
	if attempt == 0 {
		r = r.start(req)
	}
	if r == nil {
		return
	}
	if attempt > 0 { // prepare has asked already, unless the program has a PrepareRetry of its own
		if err := p.planUnchecked(req.Context(), r); err != nil {
			*req = *req.WithContext(stopped{req.Context(), err})
			return
		}
	}
	r.begin(req)
	r.last = attempt >= p.client.RetryMax
}

// begun reports whether begin has seen the request.
func (r *request) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.req != nil
}

// start returns a request that begins, in the context of req.
func (r *request) start(req *http.Request) *request {
	ctx := req.Context()
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.req == nil { // RoundTripper has made it for this one
			return r
		}
		if r.ctx == ctx { // the program uses the request a second time
			ctx = r.parent
		}
	}
	fresh := &request{parent: ctx, replay: replayable(req)}
	fresh.ctx = context.WithValue(ctx, requestKey{}, fresh)
	*req = *req.WithContext(fresh.ctx)
	return fresh
}

// replayable reports whether the request can be sent a second time, with its body.
// retryablehttp keeps a body without a GetBody, which does not count: it has read it all, and
// a redirect has nothing to send.
func replayable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// begin begins an attempt.
func (r *request) begin(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A request that was made without retryablehttp's constructors comes with the body of the
	// attempt before, which has been sent.
	if r.noBody == nil && r.req != nil && req.GetBody != nil && same(req.Body, r.req.Body) {
		if req.Body, r.noBody = req.GetBody(); r.noBody != nil {
			r.noBody = r.after(r.noBody)
		}
	}
	r.req = req
	r.sent, r.acted, r.judged, r.end = false, false, false, nil
	r.endError, r.until = nil, time.Time{}
	r.clear()
}

// same reports whether two bodies are the same one.
func same(a, b io.ReadCloser) bool {
	if a == nil || a == http.NoBody || !reflect.ValueOf(a).Comparable() || b == nil || !reflect.ValueOf(b).Comparable() {
		return false
	}
	return a == b
}

// blocked returns why the attempt cannot go: the bounds are reached, or it has no body.
func (r *request) blocked() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		return r.over
	}
	return r.noBody
}

// startHop begins a hop of an attempt.
func (r *request) startHop(t *transport.Transport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transport = t
	r.clear()
}

func (r *request) clear() {
	r.limited, r.early, r.failed, r.respondedAt, r.cancel, r.status, r.signal, r.hasSignal = nil, 0, nil, time.Time{}, nil, 0, signal{}, false
}

// setCancel sets the function that ends this hop.
func (r *request) setCancel(cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel = cancel
}

// cancelFunc returns the function that ends this hop, or nil.
func (r *request) cancelFunc() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel
}

// noteRefusal notes that the limiter has not admitted this hop.
func (r *request) noteRefusal(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited = reason
}

// noteResponse notes how a hop that went out has ended.
func (r *request) noteResponse(resp *http.Response, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.failed = err
		r.acted = r.acted || !neverSent(err)
	case resp == nil:
		r.acted = true
	default:
		r.respondedAt, r.status = time.Now(), resp.StatusCode
	}
}

// noteSignal notes what the transport has read of the response; the last reading counts.
func (r *request) noteSignal(status int, s *profile.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signal, r.hasSignal = signalOf(status, s), true
}

// readSignal computes what the response of a hop means for the next attempt.
func (r *request) readSignal(p *profile.Profile, resp *http.Response) {
	r.mu.Lock()
	respondedAt, hasSignal := !r.respondedAt.IsZero(), r.hasSignal
	r.mu.Unlock()
	if !respondedAt {
		return
	}
	var s signal
	if !hasSignal && resp != nil { // OnResponse has judged it, so the transport did not read it
		s = classify(p, resp) // this may wait for the body
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !hasSignal {
		r.signal = s
	}
	if r.signal.throttled {
		r.refusedAt, r.asked = r.respondedAt, r.signal.wait
	}
	r.acted = r.acted || !r.signal.refused
}

// again reports whether the request may go once more after this attempt.
func (r *request) again(safe func(*http.Request) bool) bool {
	switch {
	case !r.replay:
		return false
	case !r.acted || idempotent(r.req):
		return true
	}
	return safe != nil && safe(r.req)
}

// idempotent reports whether sending the request twice is as good as once.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, x := req.Header["X-Idempotency-Key"]
	return key || x
}
