package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	defaultThrottled = 10
	defaultFailures  = 4
	farthest         = 24 * time.Hour // as package queue has it
	defaultWaitMin   = time.Second    // as retryablehttp has it
	defaultWaitMax   = 30 * time.Second
)

// Config bounds what a client tries again. Its zero value works.
type Config struct {
	// MaxThrottled is how many refusals by the API one request survives, such as 429, or 503
	// with a Retry-After. Each of them is a call that the API counts. With 3 the request goes
	// out at most 4 times because of them. Refusals by the limiter do not count, since
	// nothing goes out: MaxWait bounds those. 0: 10. Negative: none.
	MaxThrottled int
	// MaxFailures is how many failures one request survives: errors of the network or of a
	// store, and answers 500 and above. Refusals do not count among them. 0: 4. Negative:
	// none.
	MaxFailures int
	// MaxWait is the longest that a request waits for room: in its limiter, such as a queue, and
	// between its attempts, until it goes out and is not refused again. The client tells the
	// limiter how much of it is left, and at least 5 ms, so MaxWait and that of a queue do not add
	// up. The time that the API takes to answer does not count. The client does not begin a pause
	// that would end later: the error comes immediately, with the time to come back. If MaxWait is
	// zero, only the request's context bounds the wait; without a deadline no pause ends later than
	// a day after the first refusal.
	MaxWait time.Duration
	// Safe reports whether the client may send a request again although the API may have
	// carried it out already. It is asked about methods that are not idempotent, such as POST
	// and PATCH, without an Idempotency-Key or X-Idempotency-Key header. It must not change
	// the request or read its body. nil: the client may not.
	Safe func(*http.Request) bool
}

// NewClient returns a client that tries again what the API or the transport's limiter
// refuses, and what fails, within the bounds of a zero [Config].
func NewClient(t *transport.Transport) *retryablehttp.Client { return Config{}.NewClient(t) }

// NewClient returns a client for which the transport's limiter admits every attempt, and
// every hop of a redirect. It logs nothing. NewClient copies the transport, and shares its
// Base, limiters and functions; connections stay open when the client gives a request up.
// With a nil transport all requests fail with [outbound.ErrNil].
//
// RetryWaitMin and RetryWaitMax of the client, 1 s and 30 s, bound the pauses after failures;
// Config bounds the rest. RetryMax, which would count all rounds alike, is out of the way. A
// Logger writes URLs with their queries, so set one only where these are no secret.
// RequestLogHook connects a request with its counts: a hook of your own calls it first, as in
//
//	first := client.RequestLogHook
//	client.RequestLogHook = func(l retryablehttp.Logger, req *http.Request, n int) {
//		first(l, req, n)
//		…
//	}
//
// and without it the client tries nothing again.
//
// A CheckRetry of your own, such as retryablehttp.DefaultRetryPolicy, says what is tried
// again. Config still says how often and when: each of its rounds counts as a refusal by the
// API, as a wait for the limiter, or else as a failure. When a bound is reached, the client
// returns the error, from a [RoundTripper] too: the last response has been closed.
func (c Config) NewClient(t *transport.Transport) *retryablehttp.Client {
	if c.MaxThrottled == 0 {
		c.MaxThrottled = defaultThrottled
	}
	if c.MaxFailures == 0 {
		c.MaxFailures = defaultFailures
	}
	p := &policy{Config: c}
	p.client = &retryablehttp.Client{
		HTTPClient:     &http.Client{Transport: newRedirects(p, t), CheckRedirect: checkRedirect},
		RetryWaitMin:   defaultWaitMin,
		RetryWaitMax:   defaultWaitMax,
		RetryMax:       math.MaxInt,
		RequestLogHook: p.begin,
		CheckRetry:     p.check,
		Backoff:        backoff,
		PrepareRetry:   p.prepare,
		ErrorHandler:   giveUp,
	}
	return p.client
}

// policy is what the requests of one client have in common.
type policy struct {
	Config
	client *retryablehttp.Client // for its RetryWaitMin and RetryWaitMax
}

// broken is the limiter of a client without a transport. It refuses all requests; without any
// limiter they would go unpaced.
type broken struct{}

func (broken) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, fmt.Errorf("retry: %w: Transport", outbound.ErrNil)
}

// checkRedirect follows redirects as http.Client does, unless the caller does.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if r := requestOf(req.Context()); r != nil && r.oneHop {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("retry: stopped after 10 redirects")
	}
	return nil
}
