package retry

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Error is the error of a request that has no response. If the limiter has refused the request,
// [errors.As] finds the [*outbound.ThrottledError].
type Error struct {
	// Method and URL are the request's. The URL has no user, password, query and fragment.
	Method, URL string
	// Attempts is how often the request was tried. The limiter may have refused the last attempt.
	// If it is zero, the request was not sent because it came again too soon.
	Attempts int
	// Err is why the request has ended.
	Err error

	attempt *attempt // or nil
}

func newError(a *attempt, err error) *Error {
	e := &Error{Method: cmp.Or(a.req.Method, http.MethodGet), Attempts: 1, Err: err, attempt: a}
	if u := a.req.URL; u != nil {
		e.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
	}
	return e
}

func (e *Error) Error() string {
	attempt := ""
	if e.Attempts > 1 {
		attempt = fmt.Sprintf("attempt %d: ", e.Attempts)
	}
	if e.Attempts == 0 || e.attempt != nil && e.attempt.refused != nil {
		attempt += "not sent: "
	}
	return fmt.Sprintf("retry: %s %s: %s%v", e.Method, e.URL, attempt, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout, such as a context's deadline.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// RetryableError returns false: the client has sent again what can be. aws-sdk-go-v2 asks, and
// would otherwise send the request again.
func (e *Error) RetryableError() bool { return false }

// end is the ErrorHandler: it returns a response or an error, and never both.
func (p *policy) end(resp *http.Response, err error, attempts int) (*http.Response, error) {
	a, e := result(resp, err)
	var unread *rest
	if resp != nil {
		unread, _ = resp.Body.(*rest)
	}
	over := a != nil && attempts > max(1, p.client.RetryMax) // RetryMax allows no further attempt
	switch {
	case err == nil:
		if unread != nil {
			resp.Body = unread.ReadCloser
			p.forbid(resp)
		}
		if over {
			p.remember(a.req, fmt.Errorf("status %d", resp.StatusCode))
		}
		return resp, nil
	case resp != nil && unread == nil: // retryablehttp has closed the rest
		_ = resp.Body.Close()
	}
	if e == nil {
		return nil, err
	}
	if over {
		p.remember(a.req, e.Err)
	}
	e.Attempts = min(e.Attempts, 1) * attempts
	return nil, e
}

// forbid marks a response for SDKs: its request was sent as often as allowed. If RetryMax is 0, an
// SDK is to send it again.
func (p *policy) forbid(resp *http.Response) {
	if p.client.RetryMax <= 0 {
		return
	}
	resp.Header = resp.Header.Clone() // it may be a cache's
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("X-Should-Retry", "false")
}

// givenUpFor is how long a client remembers a request that it has sent as often as it may. An SDK
// that sends the request again would multiply the attempts.
const givenUpFor = 30 * time.Second

var errAgain = errors.New("sent again within 30 s")

// again returns the error of a request that was given up a moment ago, or nil.
func (p *policy) again(req *http.Request) error {
	if why, ok := p.givenUp.Load(keyed(req)); ok {
		e := newError(&attempt{req: req}, why.(error))
		e.Attempts, e.attempt = 0, nil
		return e
	}
	return nil
}

// remember notes why a request was given up.
func (p *policy) remember(req *http.Request, why error) {
	if id := keyed(req); id != "" {
		p.givenUp.Store(id, fmt.Errorf("%w: %w", errAgain, why))
		time.AfterFunc(givenUpFor, func() { p.givenUp.Delete(id) })
	}
}

// keyed returns what identifies a request that has an Idempotency-Key, or "".
func keyed(req *http.Request) string {
	key := idempotencyKey(req)
	if key == "" || req.URL == nil {
		return ""
	}
	return req.Method + " " + req.URL.String() + " " + key
}
