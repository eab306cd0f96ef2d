package retry

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// errHook ends a request that a CheckRetry of the program's own would try again, if no hook
// has called the method begin: nobody would count the attempts.
var errHook = errors.New("CheckRetry was replaced, and RequestLogHook does not call the first one")

// planUnchecked plans the next attempt if check has not, because the program has a CheckRetry
// of its own. Whatever that wants, the bounds and pauses are those of the Config.
// planUnchecked returns why there is no next attempt.
func (p *policy) planUnchecked(ctx context.Context, r *request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judged || r.over != nil {
		return r.over
	}
	r.judged = true
	if r.noBody != nil { // the next attempt would have no body either
		r.over = r.report(nil, r.noBody)
		return r.over
	}
	resp, err := r.lastResult()
	what, wait := failed, time.Duration(0)
	if resp != nil || err != nil || r.early > 0 {
		what, wait = r.outcome(resp, err)
	}
	if what == final { // final for check
		what, wait = failed, 0
	}
	why := r.why(what, wait, resp, err)
	r.endError = r.report(resp, why)
	ok, pastDeadline := p.plan(ctx, r, what, wait)
	if ok && r.replay {
		return nil
	}
	if pastDeadline {
		why = deadline(why)
	}
	r.over = r.report(resp, why)
	return r.over
}

// lastResult returns the response or the error of the attempt, as far as the request knows
// them. The caller holds r.mu.
func (r *request) lastResult() (*http.Response, error) {
	switch {
	case r.failed != nil:
		return nil, r.failed
	case r.limited != nil:
		return nil, r.limited
	case r.status != 0:
		return &http.Response{StatusCode: r.status, Request: r.req}, nil
	}
	return nil, nil
}

// stopped is the context of an attempt that must not go out: retryablehttp ends with its
// error, whichever policy it has.
type stopped struct {
	context.Context
	why error
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s stopped) Done() <-chan struct{} { return closed }
func (s stopped) Err() error            { return s.why }

// finalError returns the error for a request that the program's own policy, or RetryMax, has
// ended after so many rounds. It returns the error of a PrepareRetry as it is.
func finalError(resp *http.Response, err error, rounds int) error {
	if resp != nil && resp.Request != nil {
		if r := requestOf(resp.Request.Context()); r != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.req != nil && !r.judged {
				return r.report(resp, err)
			}
		}
	}
	var e *Error
	switch u, _ := err.(*url.Error); {
	case errors.As(err, &e):
		return e
	case u != nil:
		e = &Error{Method: strings.ToUpper(u.Op), Attempts: rounds, StatusCode: statusOf(resp), Err: u.Err}
		if address, bad := url.Parse(u.URL); bad == nil {
			e.URL = redactedURL(address)
		}
		return e
	case err != nil:
		return err
	}
	e = &Error{Attempts: rounds, StatusCode: statusOf(resp)}
	if resp != nil && resp.Request != nil {
		e.Method, e.URL = resp.Request.Method, redactedURL(resp.Request.URL)
	}
	return e
}
