package retry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// outcome is how an attempt has ended.
type outcome uint8

const (
	final   outcome = iota // no further attempt can change it
	limited                // the limiter has not admitted it, or the API's pause is not over
	refused                // the API has refused it because of its limits
	failed                 // it has failed, and the next one may not
)

// check is the CheckRetry: it decides, and notes when the next attempt may go. An error that
// comes with true is the one to end with if RetryMax allows no further attempt.
func (p *policy) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	r := requestOf(ctx)
	if r == nil || !r.begun() {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := err.(*url.Error); ok && resp != nil {
		resp.Body = http.NoBody // the http.Client has closed the body
	}
	if r.judged && err == nil {
		return false, r.end // retryablehttp asks again when a response handler accepts the response
	}
	again, end := p.judge(ctx, r, resp, err)
	r.judged, r.end = true, end
	if again && resp != nil && p.returnsResponse(r) {
		return true, nil
	}
	return again, end
}

// judge is check for an attempt that has no verdict yet. The caller holds r.mu.
func (p *policy) judge(ctx context.Context, r *request, resp *http.Response, err error) (bool, error) {
	what, wait := r.outcome(resp, err)
	switch {
	case what == final || !r.again(p.Safe):
		if err == nil {
			return false, nil // the response goes to the caller
		}
		return false, r.report(resp, err)
	case what == limited && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return false, r.report(resp, deadline(r.why(what, wait, resp, err)))
	case ctx.Err() != nil:
		return false, r.report(resp, ctx.Err())
	case resp != nil && r.oneHop && r.limited == nil && announcesRetries(r.req):
		return false, nil // its sender tries again itself
	}
	why := r.why(what, wait, resp, err)
	r.endError = r.report(resp, why)
	ok, pastDeadline := p.plan(ctx, r, what, wait)
	if ok {
		if resp != nil && !r.last {
			resp.Body = &rest{ReadCloser: resp.Body, cancel: r.cancel}
		}
		return true, r.report(resp, why)
	}
	if resp != nil && p.returnsResponse(r) {
		if what == limited || what == refused && p.MaxThrottled > 0 || what == failed && p.MaxFailures > 0 {
			forbidRetry(resp)
		}
		return false, nil
	}
	if resp != nil && r.limited != nil {
		return false, nil // OnRefusal has chosen this response
	}
	if pastDeadline {
		why = deadline(why)
	}
	return false, r.report(resp, why)
}

// outcome returns how the attempt has ended, and how long to wait; 0: nobody knows.
func (r *request) outcome(resp *http.Response, err error) (outcome, time.Duration) {
	var full *outbound.ThrottledError
	var store *outbound.StoreError
	switch {
	case r.early > 0:
		return limited, r.early
	case r.limited != nil:
		switch {
		case resp != nil && resp.StatusCode != http.StatusTooManyRequests:
			return final, 0 // OnRefusal has answered
		case errors.As(r.limited, &full):
			return limited, full.RetryAfter
		case errors.As(r.limited, &store):
			return failed, 0
		}
		return final, 0
	case err != nil:
		switch {
		case r.failed == nil: // the http.Client's own error, or a response handler's
			return final, 0
		case errors.As(r.failed, &full): // of a transport below
			return limited, full.RetryAfter
		case permanent(r.failed):
			return final, 0
		}
		return failed, 0
	case r.signal.permanent:
		return final, 0
	case r.signal.throttled:
		if r.asked == 0 && !r.signal.limiterHolds {
			r.asked = r.unheldPause()
		}
		return refused, r.asked
	case resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented && resp.StatusCode != http.StatusHTTPVersionNotSupported:
		return failed, 0
	}
	return final, 0
}

// plan counts the attempt, and notes when the next one may begin. It reports whether there is
// to be one, and if not, whether that is only because the context ends before.
func (p *policy) plan(ctx context.Context, r *request, what outcome, wait time.Duration) (ok, pastDeadline bool) {
	now := time.Now()
	left := forever
	end, bounded := ctx.Deadline()
	if bounded {
		left = end.Sub(now)
	}
	pause := wait
	if what == failed {
		r.failures++
		first := max(0, p.client.RetryWaitMin)
		most := max(first, p.client.RetryWaitMax)
		pause = doubled(first, most, r.failures)
		r.until = now.Add(most)
		if r.failures > p.MaxFailures {
			return false, false
		}
		if r.sent {
			r.since, r.waited = time.Time{}, 0 // it had room
		}
		if pause > left {
			return false, true
		}
		r.next = now.Add(jitter(pause, pause/2, left))
		return true, false
	}
	if what == refused {
		r.throttled++
	}
	if r.since.IsZero() {
		r.since = now
	}
	whole := farthest
	if p.MaxWait > 0 {
		whole = p.MaxWait
	} else if bounded {
		whole = end.Sub(r.since)
	}
	// An SDK that heeds what the API has asked for comes when that is over, or later.
	r.until = now.Add(min(wait, whole) + defaultWaitMax)
	if what == refused && r.throttled > p.MaxThrottled {
		return false, false
	}
	room := whole - r.waited
	if what == limited && wait <= 0 {
		r.unknownWaits++
		pause = doubled(minPause, time.Second, r.unknownWaits)
	}
	if pause > min(room, left) {
		return false, left <= room
	}
	switch {
	case what == refused && r.signal.limiterHolds:
		r.next = now // the limiter knows how long, and so does the departGate
	case wait <= 0, what == refused && r.signal.wait <= 0: // the pause is the client's own
		r.next = now.Add(jitter(pause, pause/2, min(room, left)))
	default:
		r.next = now.Add(jitter(pause, min(pause/10, time.Second), min(room, left)))
	}
	r.waited += r.next.Sub(now)
	return true, false
}

// why returns the error for an attempt. It keeps the error for an attempt that the limiter
// admits too early, which has none of its own.
func (r *request) why(what outcome, wait time.Duration, resp *http.Response, err error) error {
	switch {
	case what == failed:
		return err // nil: the status says it
	case what == refused:
		r.cause = r.refusedByAPI(resp, wait)
	case r.early > 0:
		r.cause = r.refusedByAPI(nil, r.early)
	case err != nil:
		r.cause = err
	default: // OnRefusal has made a response of it
		r.cause = r.limited
	}
	return r.cause
}

// refusedByAPI returns the error for a refusal by the API, with the key that the limiter's own
// refusals have. A limiter that leads to no bucket has none: then the key is the host. The caller
// holds r.mu.
func (r *request) refusedByAPI(resp *http.Response, wait time.Duration) *outbound.ThrottledError {
	req := r.req
	if resp != nil && resp.Request != nil && resp.Request.URL != nil {
		req = resp.Request
	}
	e := &outbound.ThrottledError{Key: req.URL.Host, RetryAfter: wait, Held: true}
	if t := r.transport; t != nil {
		l := t.Limiter
		if t.For != nil {
			l = cmp.Or(t.For(req), l)
		}
		addKey(l, e)
	}
	return e
}

// addKey sets the error's key to that of the limiter's bucket, or its label.
func addKey(l outbound.Limiter, e *outbound.ThrottledError) {
	if b, ok := outbound.As[*outbound.Bucket](l); ok {
		e.Key = b.Key()
	} else if q, ok := outbound.As[interface{ Bucket() *outbound.Bucket }](l); ok {
		e.Key = q.Bucket().Key()
	} else if k, ok := outbound.As[interface {
		Use(func(outbound.Limiter) error) error
	}](l); ok {
		own := *e
		used := false
		err := k.Use(func(l outbound.Limiter) error {
			used = true
			addKey(l, &own)
			return &own
		})
		if full := (*outbound.ThrottledError)(nil); used && errors.As(err, &full) {
			e.Key = full.Key
		}
	}
}

// deadline adds to an error that the context's deadline is why the client does not wait,
// unless the error tells a reason already.
func deadline(err error) error {
	var full *outbound.ThrottledError
	if !errors.As(err, &full) || full.Err != nil {
		return err
	}
	e := *full
	e.Err = context.DeadlineExceeded
	return &e
}

// permanent reports whether the next attempt would fail in the same way.
func permanent(err error) bool {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return true
	}
	text := err.Error()
	for _, mistake := range mistakes {
		if strings.Contains(text, mistake) {
			return true
		}
	}
	return false
}

// mistakes are errors of net/http that have no type.
var mistakes = []string{"unsupported protocol scheme", "no Host in request URL", "invalid header field", "invalid method"}
