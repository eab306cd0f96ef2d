package retry

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// bounded is a limiter in which a request waits no longer than what is left of MaxWait.
type bounded struct {
	outbound.Limiter
	most time.Duration
}

// bound returns the limiter that bounds the waits in l; nil stays nil.
func (p *policy) bound(l outbound.Limiter) outbound.Limiter {
	if l == nil {
		return nil
	}
	return &bounded{l, p.MaxWait}
}

// Unwrap returns the limiter itself.
func (b *bounded) Unwrap() outbound.Limiter { return b.Limiter }

func (b *bounded) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	r := requestOf(ctx)
	if r == nil {
		return b.Limiter.Acquire(ctx, c)
	}
	begin, within := time.Now(), ctx
	end := r.waitEnds(begin, b.most)
	if at, ok := ctx.Deadline(); !ok || at.After(end) {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	p, err := b.Limiter.Acquire(within, c)
	r.hasWaited(begin)
	var full *outbound.ThrottledError
	if within != ctx && ctx.Err() == nil && errors.As(err, &full) && full.Err == context.DeadlineExceeded {
		own := *full // the request's own deadline has not passed
		own.Err = nil
		err = &own
	}
	return p, err
}

// waitEnds returns when the wait for room ends that goes on at this time, or begins.
func (r *request) waitEnds(now time.Time, most time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.since.IsZero() {
		return r.since.Add(most)
	}
	return now.Add(most - r.waited)
}

// hasWaited notes that the request was in its limiter from begin until now.
func (r *request) hasWaited(begin time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waited += time.Since(begin)
}
