package retry

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

const (
	farthest = 24 * time.Hour // the longest pause without any bound, as in package queue
	// grace is what the limiter has at least, so that capacity that is free when MaxWait ends is
	// used.
	grace = 5 * time.Millisecond
)

// waiting returns a transport whose limiter waits, and those of the transports that are its Base.
func (p *policy) waiting(t *transport.Transport) *transport.Transport {
	own := *t
	own.Limiter = p.limiter(t.Limiter)
	if t.For != nil {
		own.For = func(req *http.Request) outbound.Limiter { return p.limiter(t.For(req)) }
	}
	if below, ok := t.Base.(*transport.Transport); ok && below != nil {
		own.Base = p.waiting(below)
	}
	return &own
}

func (p *policy) limiter(l outbound.Limiter) outbound.Limiter {
	if l == nil {
		return nil
	}
	return &limiter{l, p}
}

// limiter waits for another one: it asks again after a refusal's RetryAfter.
type limiter struct {
	outbound.Limiter
	policy *policy
}

// Unwrap returns the other limiter.
func (l *limiter) Unwrap() outbound.Limiter { return l.Limiter }

func (l *limiter) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	a := attemptOf(ctx)
	if a == nil {
		return l.Limiter.Acquire(ctx, c)
	}
	permit, err := l.wait(ctx, a, c)
	a.refused = err
	return permit, err
}

// wait asks until the limiter admits the call, or would do so only when MaxWait or ctx is over.
func (l *limiter) wait(ctx context.Context, a *attempt, c outbound.Cost) (outbound.Permit, error) {
	came := time.Now()
	for n := 0; ; n++ {
		within, cancel, began := ctx, func() {}, time.Now()
		if l.policy.MaxWait != 0 {
			most, _ := longest(ctx, l.policy.MaxWait, a.waited)
			within, cancel = context.WithTimeout(ctx, max(grace, most))
		}
		permit, err := l.Limiter.Acquire(within, c)
		over := within.Err()
		cancel()
		if l.policy.MaxWait != 0 {
			a.waited += time.Since(began)
		}
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok {
			if err != nil && err == over && ctx.Err() == nil { // of a limiter that just waits
				err = &outbound.ThrottledError{}
			}
			return permit, err
		}
		pause, more := full.RetryAfter, min(full.RetryAfter/10, time.Second)
		if pause <= 0 { // it is unknown
			pause = unasked(10*time.Millisecond, time.Second, n)
			more = pause / 2
		}
		left, byCtx := longest(ctx, l.policy.MaxWait, a.waited)
		if pause > left || ctx.Err() != nil {
			return permit, bounded(ctx, err, full, byCtx, came)
		}
		pause = jitter(pause, more, left)
		a.waited += pause
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if ctx.Err() == context.DeadlineExceeded {
			return permit, bounded(ctx, err, full, byCtx, came)
		}
	}
}

// bounded returns the limiter's error, which is [context.DeadlineExceeded] if and only if the
// request's own deadline bounds the wait.
func bounded(ctx context.Context, err error, full *outbound.ThrottledError, byCtx bool, came time.Time) error {
	own := *full
	switch {
	case byCtx && (full.Err == nil || errors.Is(full.Err, context.DeadlineExceeded)):
		own.Late(ctx, came)
	case !byCtx && errors.Is(full.Err, context.DeadlineExceeded):
		own.Err = nil
	default:
		return err
	}
	return &own
}

// jitter returns d and up to more on top, so that requests with the same time do not come together.
// It exceeds most only if d does.
func jitter(d, more, most time.Duration) time.Duration {
	more = min(more, most-d)
	if more <= 0 {
		return d
	}
	return d + rand.N(more)
}
