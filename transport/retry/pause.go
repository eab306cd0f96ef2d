package retry

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	forever = time.Duration(math.MaxInt64)
	// minPause is the first pause for a limiter that does not know when it has room: some
	// call in progress ends sometime.
	minPause = 10 * time.Millisecond
)

// backoff is the Backoff: what is left until the next attempt may begin. After an error it
// does not get the request, and prepare waits instead.
//
// It is never 0: under the race detector, timers of no time at all in several goroutines of a
// testing/synctest bubble crash the program, up to Go 1.26 at least.
func backoff(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
	if resp == nil || resp.Request == nil {
		return 1
	}
	if r := requestOf(resp.Request.Context()); r != nil {
		return max(1, r.left())
	}
	return 1
}

// prepare is the PrepareRetry: it waits where backoff could not.
func (p *policy) prepare(req *http.Request) error {
	r := requestOf(req.Context())
	if r == nil || !r.begun() {
		return &Error{Method: req.Method, URL: redactedURL(req.URL), Attempts: 1, Err: errHook}
	}
	if err := p.planUnchecked(req.Context(), r); err != nil {
		return err
	}
	return r.pause(req.Context())
}

// left returns the time until the next attempt may begin.
func (r *request) left() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, time.Until(r.next))
}

func (r *request) pause(ctx context.Context) error { return sleep(ctx, r.left()) }

// sleep waits, or returns the error of ctx if that ends before.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// doubled returns the n-th pause, from 1, of a row that begins with first and doubles up to
// most.
func doubled(first, most time.Duration, n int) time.Duration {
	for range n - 1 {
		if first > most/2 {
			return most
		}
		first *= 2
	}
	return min(first, most)
}

// unheldPause returns how long to wait after a refusal if the API has not said so, and the
// limiter holds nobody. The caller holds r.mu.
func (r *request) unheldPause() time.Duration {
	r.unheld++
	return doubled(time.Second, defaultWaitMax, r.unheld)
}

// jitter returns d and up to more on top, so that requests that got the same time do not come
// together. It is never less than d, and more than most only if d is.
func jitter(d, more, most time.Duration) time.Duration {
	more = min(more, most-d)
	if more <= 0 {
		return d
	}
	return d + rand.N(more)
}
