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
	end := begin.Add(r.waitLeft(b.most))
	if at, ok := ctx.Deadline(); !ok || at.After(end) {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	p, err := b.Limiter.Acquire(within, c)
	r.hasWaited(begin)
	if err != nil && within != ctx && ctx.Err() == nil { // the request's own deadline has not passed
		err = r.ownRefusal(err, within.Err() != nil)
	}
	return p, err
}

// waitLeft returns how long the limiter may take now. It is never so short that room that is free
// goes unused.
func (r *request) waitLeft(most time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(clockTolerance, most-r.waited)
}

// hasWaited notes that the request was in its limiter from begin until now.
func (r *request) hasWaited(begin time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waited += time.Since(begin)
}

// ownRefusal returns the limiter's error without the deadline that MaxWait has set, over says
// whether that has passed. If the limiter does not know when to come back, the error is that of the
// refusal before.
func (r *request) ownRefusal(err error, over bool) error {
	var full *outbound.ThrottledError
	var store *outbound.StoreError
	switch {
	case errors.As(err, &full):
		if full.Err != context.DeadlineExceeded {
			return err
		}
	case !over || errors.As(err, &store):
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if full == nil {
		full = r.refusedByAPI(nil, 0)
		full.Held = false
	}
	if last := (*outbound.ThrottledError)(nil); full.RetryAfter <= 0 && errors.As(r.cause, &last) {
		return last
	}
	own := *full
	own.Err = nil
	return &own
}
