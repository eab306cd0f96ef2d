package retry

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/outbound"
)

// outcome is how an attempt has ended: what a retry after it takes of the Budget.
type outcome int

const (
	final   outcome = 0  // no further attempt can change it
	refused outcome = 5  // by the API, because of its limits
	failed  outcome = 14 // the next attempt may not
)

// outcome returns how an attempt has ended, with a response or an Error.
func (a *attempt) outcome(resp *http.Response, e *Error) outcome {
	switch {
	case a.refused != nil: // it was waited for
		if _, ok := errors.AsType[*outbound.StoreError](a.refused); ok && e != nil {
			return failed
		}
	case e != nil && a.signal.throttled:
		return refused
	case e != nil:
		again, _ := retryablehttp.DefaultRetryPolicy(context.Background(), nil, &url.Error{Err: e.Err})
		if again && !errors.Is(e, outbound.ErrThrottled) { // a limiter that is not waited for
			return failed
		}
	case a.signal.permanent:
	case a.signal.throttled:
		return refused
	case resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented &&
		resp.StatusCode != http.StatusHTTPVersionNotSupported:
		return failed
	}
	return final
}

// check is the CheckRetry.
func (p *policy) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	a, e := result(resp, err)
	if a == nil {
		return false, nil // http.Client's own error, or a response handler's
	}
	what := a.outcome(resp, e)
	switch {
	case e != nil && ctx.Err() != nil && (what != final || ctx.Err() == context.Canceled):
		return false, ctx.Err()
	case what == final:
		switch {
		case e != nil:
		case a.refused != nil: // the response is OnRefusal's
			p.forbid(resp)
		case a.signal.throttled, resp.StatusCode >= 500:
		case retriesOf(ctx) > 0:
			p.spend(-refused) // the least that the retry can have taken
		default:
			p.spend(-1)
		}
	case !a.again(err, p.Safe), resp != nil && announced(a.req):
	case p.plan(ctx, a, what) && (retriesOf(ctx) >= p.client.RetryMax || p.spend(what)):
		if resp != nil {
			resp.Body = &rest{resp.Body, a.cancel}
		}
		return true, nil
	case resp != nil:
		p.forbid(resp)
	}
	return false, nil
}

// plan chooses the pause before the next attempt, and reports whether that may begin.
func (p *policy) plan(ctx context.Context, a *attempt, what outcome) bool {
	most, _ := longest(ctx, p.MaxWait, a.waited)
	if what == failed { // this is no wait for the limits
		most, _ = longest(ctx, -1, 0)
	}
	if wait := a.signal.wait; wait > 0 {
		if a.least > 0 {
			wait = min(wait, a.least)
		}
		a.pause = asked(wait, most)
		return wait <= most
	}
	pause := unasked(p.client.RetryWaitMin, p.client.RetryWaitMax, retriesOf(ctx))
	return pause <= most-pause/2
}

// asked returns the pause if the API has asked for one.
func asked(wait, most time.Duration) time.Duration {
	return jitter(wait, min(wait/10, time.Second), most)
}

// unasked returns the pause if the API has not asked for one, after so many retries.
func unasked(first, most time.Duration, retries int) time.Duration {
	return retryablehttp.DefaultBackoff(max(0, first), max(0, first, most), min(retries, 63), nil)
}

// backoff is the Backoff. It is never 0: under the race detector, timers of no time at all in
// several goroutines of a testing/synctest bubble crash the program, up to Go 1.26 at least.
func backoff(first, most time.Duration, retries int, resp *http.Response) time.Duration {
	a, _ := result(resp, nil)
	switch {
	case a != nil && a.pause > 0:
		return a.pause
	case a != nil && a.signal.wait > 0: // CheckRetry is the program's own
		return asked(a.signal.wait, farthest)
	}
	pause := unasked(first, most, retries)
	return max(1, jitter(pause, pause/2, farthest))
}

// retried is the context of a request's further attempts. It has their number for CheckRetry.
type retried struct {
	context.Context
	retries int
}

func retriesOf(ctx context.Context) int {
	if c, ok := ctx.(*retried); ok {
		return c.retries
	}
	return 0
}

// prepare is the PrepareRetry.
func prepare(req *http.Request) error {
	ctx, n := req.Context(), 1
	if c, ok := ctx.(*retried); ok {
		ctx, n = c.Context, c.retries+1
	}
	*req = *req.WithContext(&retried{ctx, n})
	return nil
}

// announced reports whether the request says that its sender, an SDK of AWS, sends it several times
// by itself, as "attempt=1; max=3". A sender without a bound omits max.
func announced(req *http.Request) bool {
	attempt := false
	for part := range strings.SplitSeq(req.Header.Get("Amz-Sdk-Request"), ";") {
		part = strings.TrimSpace(part)
		if most, ok := strings.CutPrefix(part, "max="); ok {
			n, err := strconv.Atoi(most)
			return err == nil && n > 1
		}
		attempt = attempt || strings.HasPrefix(part, "attempt=")
	}
	return attempt
}
