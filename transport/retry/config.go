package retry

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// Config bounds what a client sends again. Its zero value works.
type Config struct {
	// MaxWait is the longest that an attempt waits for its limiter, such as a queue, and then for the
	// time that the API asks for. A queue's own MaxWait adds nothing to it. If the wait would be
	// longer, the response or the limiter's error is returned immediately. If MaxWait is zero, the
	// request's context bounds the wait. Where the context has no deadline, a queue then waits as its
	// Config says, and a time that the API or the limiter asks for is at most 2 min. If MaxWait is
	// negative, that bound is a day.
	MaxWait time.Duration
	// Safe reports whether the client may send a request again although the API may have carried it
	// out. It is called for methods that are not idempotent, such as POST, without an
	// Idempotency-Key. It must not change the request or read its body. If Safe is nil, the client
	// may not.
	Safe func(*http.Request) bool
	// Budget bounds the retries of all requests of a client together, so that an API that fails for
	// all gets few more attempts than requests. A retry after a refusal because of limits takes 5 of
	// it, and one after a failure 14. A retry that succeeds returns 5, and any other success 1. If
	// too little is left, the client returns the response or the error immediately. The SDKs of AWS
	// have 500. If Budget is zero or less, RetryMax alone bounds the retries.
	Budget int
}

// NewClient returns the client of a zero [Config].
func NewClient(t *transport.Transport) *retryablehttp.Client { return Config{}.NewClient(t) }

// NewClient returns a client that asks the transport's limiter before each attempt. The client logs
// nothing. NewClient copies the transport and sets CheckRetry, Backoff, PrepareRetry, ErrorHandler
// and HTTPClient. RetryMax, RetryWaitMin, RetryWaitMax, Logger and the hooks are the program's to
// change. HTTPClient must not follow redirects: an attempt would be all hops of one. If t is nil,
// all requests fail with [outbound.ErrInvalid].
func (c Config) NewClient(t *transport.Transport) *retryablehttp.Client {
	if t == nil {
		t = &transport.Transport{Limiter: broken{}}
	}
	p := &policy{Config: c, client: retryablehttp.NewClient()}
	p.client.Logger = nil
	p.client.HTTPClient = &http.Client{
		Transport: newSender(p, t),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the http.Client above follows
		},
	}
	p.client.CheckRetry = p.check
	p.client.Backoff = backoff
	p.client.PrepareRetry = prepare
	p.client.ErrorHandler = p.end
	return p.client
}

// policy is what the requests of one client have in common.
type policy struct {
	Config
	client  *retryablehttp.Client
	givenUp sync.Map // from keyed's identity to why

	mu    sync.Mutex
	spent int // of the Budget; mu protects it
}

// spend takes n of the Budget, or returns -n to it. It reports whether there is as much.
func (p *policy) spend(n outcome) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Budget > 0 && int(n) > p.Budget-p.spent {
		return false
	}
	p.spent = max(0, p.spent+int(n))
	return true
}

// patience is the longest pause without a MaxWait and a deadline. APIs that count by the minute ask
// for up to 120 s. Longer pauses look like a hang.
const patience = 2 * time.Minute

// longest returns the longest wait of a request that has waited so long, and whether the context's
// deadline is what bounds it.
func longest(ctx context.Context, maxWait, waited time.Duration) (most time.Duration, byCtx bool) {
	end, bounded := ctx.Deadline()
	left := time.Until(end)
	most = maxWait - waited
	switch {
	case maxWait == 0 && !bounded:
		return patience - waited, false
	case maxWait < 0 && !bounded:
		return farthest - waited, false
	case bounded && (maxWait <= 0 || left <= most):
		return left, true
	}
	return most, false
}

// broken is the limiter of a client without a transport. Without a limiter its requests would go
// unpaced.
type broken struct{}

func (broken) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, fmt.Errorf("retry: %w: nil Transport", outbound.ErrInvalid)
}
